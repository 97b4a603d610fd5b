"""Not a test: a program that test_openai_client.py runs with one version of the official client on its path.

``python openai_walk.py URL KEY`` walks through the API part by part and prints the names of the parts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import sys
import tempfile
import time
import urllib.request
import warnings
from pathlib import Path

import openai
from openai import AsyncOpenAI, OpenAI

warnings.filterwarnings("ignore", category=DeprecationWarning)  # 3.x marks every videos method
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAGUlEQVR4nGM8wcXFQApgIkn1qIZRDUNKAwDU9AD8hHwyHQAAAABJRU5ErkJggg=="
)


def make(client: OpenAI, prompt: str = "a cat", **options: object) -> openai.types.Video:
    return client.videos.create(prompt=prompt, **options)


def walk_create(client: OpenAI) -> None:
    video = client.videos.create_and_poll(prompt="a cat", size="64x48", seconds="1")
    assert video.status == "completed" and video.progress == 100 and video.seconds == "1.042", video
    for picture in (("cat.png", PNG, "image/png"), PNG, io.BytesIO(PNG)):
        assert make(client, input_reference=picture).has_image is True
    extra = {"num_frames": 5, "seed": 9007199254740993, "guidance_scale": 3.5, "generate_sound": False}
    video = make(client, extra_body=extra)
    assert (video.num_frames, video.seed, video.has_audio) == (5, 9007199254740993, False)
    assert make(client, extra_body={"extra_params": {"sample_audio": False}}).has_audio is False
    assert make(client, extra_body={"extra_params": json.dumps({"sample_audio": False})}).has_audio is False


def walk_read(client: OpenAI) -> None:
    made = [make(client, f"number {number}").id for number in range(5)]
    for order in ("asc", "desc"):
        seen = [video.id for video in client.videos.list(limit=2, order=order)]
        assert len(seen) == len(set(seen))
        ours = [video_id for video_id in seen if video_id in made]
        assert ours == (made if order == "asc" else made[::-1]), order
    video = client.videos.poll(made[0])
    assert client.videos.retrieve(made[0]).status == video.status == "completed"
    content = client.videos.download_content(made[0])
    data = content.read()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        client.videos.download_content(made[0]).write_to_file(path)
        assert path.read_bytes() == data and data[4:8] == b"ftyp"
        with client.videos.with_streaming_response.download_content(made[0]) as streamed:
            streamed.stream_to_file(path)
        assert path.read_bytes() == data
    picture = client.videos.download_content(made[0], variant="thumbnail").read()
    assert picture[8:12] == b"WEBP"


def walk_delete(client: OpenAI) -> None:
    running = make(client, "[step=0.5]", extra_body={"num_inference_steps": 30})
    waiting = make(client)
    failed = make(client, "[nan]")
    while client.videos.retrieve(running.id).status == "queued":
        time.sleep(0.05)
    for video in (waiting, running):
        assert client.videos.delete(video.id).deleted is True
    assert client.videos.poll(failed.id).status == "failed"
    done = client.videos.create_and_poll(prompt="a cat")
    for video in (failed, done):
        assert client.videos.delete(video.id).deleted is True
    try:
        client.videos.delete(done.id)
    except openai.NotFoundError as error:
        assert error.code == "video_not_found"
    else:
        raise AssertionError("deleted twice")


def walk_errors(client: OpenAI) -> None:
    failed = client.videos.create_and_poll(prompt="[nan]")
    assert failed.status == "failed" and failed.error.code == "internal_error" and failed.error.message
    expect(openai.AuthenticationError, "key", lambda: make(client.with_options(api_key="wrong")))
    error = expect(openai.BadRequestError, "multiples of 16", lambda: make(client, size="854x481"))
    assert error.param == "size" and error.request_id.startswith("req_")
    slow = make(client, "[step=0.5]", extra_body={"num_inference_steps": 30})
    expect(openai.NotFoundError, "ask again", lambda: client.videos.download_content(slow.id))
    expect(openai.NotFoundError, "nothing at this address", lambda: client.videos.retrieve("video_a/b"))
    began = time.monotonic()
    error = expect(openai.APIStatusError, "prompt", lambda: client.videos.remix(slow.id, prompt="x"))
    assert error.status_code == 501 and time.monotonic() - began < 2, "501 must not be retried"
    client.videos.delete(slow.id)


def walk_full_queue(client: OpenAI) -> None:
    once = client.with_options(max_retries=0)
    post(client, "/queue/pause")
    ids = []
    try:
        for _ in range(100):
            ids.append(make(once).id)
    except openai.RateLimitError as error:
        assert error.code == "queue_full"
    else:
        raise AssertionError("the queue was never full")
    for video_id in ids:
        client.videos.delete(video_id)
    post(client, "/queue/resume")


def walk_retries(client: OpenAI) -> None:
    """A client that gives up too early sends the same create three times; a key makes them one job."""
    hasty = client.with_options(timeout=0.001, max_retries=2)
    for headers, most in (({}, 3), ({"Idempotency-Key": f"walk-{time.time_ns()}"}, 1)):
        before = {video.id for video in client.videos.list(limit=100)}
        with contextlib.suppress(openai.APITimeoutError, openai.APIConnectionError):
            hasty.videos.create(prompt="hasty", extra_headers=headers)
        time.sleep(0.5)
        after = {video.id for video in client.videos.list(limit=100)} - before
        assert len(after) <= most, (headers, after)


async def walk_async(url: str, key: str) -> None:
    async with AsyncOpenAI(base_url=url, api_key=key) as client:
        video = await client.videos.create_and_poll(prompt="a cat", input_reference=PNG)
        assert video.status == "completed" and video.has_image
        content = await client.videos.download_content(video.id)
        assert (await content.aread())[4:8] == b"ftyp"
        assert video.id in [v.id async for v in client.videos.list(limit=1)]
        failed = await client.videos.create_and_poll(prompt="[nan]")
        assert failed.status == "failed"
        assert (await client.videos.delete(video.id)).deleted


def expect(kind: type[Exception], words: str, call: object) -> Exception:
    try:
        call()
    except kind as error:
        assert words in str(error), (words, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}")


def post(client: OpenAI, path: str) -> None:
    headers = {"Authorization": f"Bearer {client.api_key}"}
    request = urllib.request.Request(str(client.base_url).rstrip("/") + path, method="POST", headers=headers)
    urllib.request.urlopen(request, timeout=10).read()


def main() -> None:
    url, key = sys.argv[1:]
    print(openai.__version__)
    with OpenAI(base_url=url, api_key=key) as client:
        for walk in (walk_create, walk_read, walk_delete, walk_errors, walk_full_queue, walk_retries):
            walk(client)
            print(walk.__name__)
    asyncio.run(walk_async(url, key))
    print("walk_async")


if __name__ == "__main__":
    main()
