"""The create call: which fields are taken, which refused, and in which of three encodings."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

ENCODINGS = ("multipart", "json", "urlencoded")


def send(api: Any, encoding: str, fields: dict[str, Any]) -> Any:
    if encoding == "multipart":
        return api.send_form(**fields)
    if encoding == "json":
        return api.post("/v1/videos", json=fields)
    return api.post("/v1/videos", data=fields)


def refused(answer: Any, param: str | None, status: int = 400) -> dict[str, Any]:
    """The error of a refusal that follows every rule: envelope, code, field, no trace of Python."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] and error["message"] and error["param"] == param
    assert "Traceback" not in answer.text and 'File "' not in answer.text
    assert answer.headers["x-request-id"]
    return dict(error)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_same_request_in_each_encoding(api: Any, encoding: str) -> None:
    fields = {
        "prompt": "кот",
        "size": "48x32",
        "num_frames": "5",
        "seed": "7",
        "extra_params": '{"sample_audio": false}',
    }
    job = send(api, encoding, fields).json()
    shown = (job["prompt"], job["size"], job["num_frames"], job["seed"], job["has_audio"])
    assert shown == ("кот", "48x32", 5, 7, False)
    assert job["status"] == "queued" and job["object"] == "video" and job["id"].startswith("video_")


def test_prompt_alone_is_enough(api: Any) -> None:
    job = api.run("a cat")
    assert (job["size"], job["num_frames"], job["num_inference_steps"], job["guidance_scale"]) == ("64x48", 9, 4, 5.0)
    assert job["has_audio"] is True


BAD = [
    *[("prompt", value) for value in ("", "   ", "\n\t", "x" * 32_001)],
    *[("num_inference_steps", value) for value in ("0", "-1", "1.5", "abc", "100000", "1" + "0" * 18)],
    *[("guidance_scale", value) for value in ("nan", "-3", "inf", "20.5", "1e400")],
    *[("fps", value) for value in ("0", "-1", "abc", "nan", "16")],
    *[("n", value) for value in ("0", "1000000")],
    ("output_format", "webm"),
    *[("num_frames", value) for value in ("0", "-5", "510", "1e2x", "１２１")],
    *[("seconds", value) for value in ("0", "11", "-4", "four")],
    *[("seed", value) for value in ("-2", "1.5", "9223372036854775808", "18446744073709551616", "1" + "0" * 30)],
    ("generate_sound", "maybe"),
    ("extra_params", "[1]"),
    ("extra_params", "{broken"),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_bad_value_names_its_field_and_makes_no_job(api: Any, field: str, value: str) -> None:
    before, began = api.count(), time.monotonic()
    answer = api.send_form(**{"model": "k6", "prompt": "cat", "size": "48x32", field: value})
    assert time.monotonic() - began < 1.0
    refused(answer, field)
    assert api.count() == before


@pytest.mark.parametrize("value", [None, 7, [], True, {"a": 1}])
def test_prompt_must_be_text_in_json(api: Any, value: Any) -> None:
    refused(api.post("/v1/videos", json={"prompt": value}), "prompt")


def test_prompt_must_be_there(api: Any) -> None:
    assert refused(api.send_form(model="k6"), "prompt")["code"] == "missing_required_parameter"
    assert refused(api.post("/v1/videos", json={}), "prompt")["code"] == "missing_required_parameter"
    assert refused(api.post("/v1/videos"), "prompt")["code"] == "missing_required_parameter"


def test_empty_negative_prompt_means_empty(api: Any) -> None:
    """T-A1: accepted, and not the same as leaving it out."""
    assert api.create(negative_prompt="")["negative_prompt"] == ""
    assert api.create()["negative_prompt"] is None


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32, 9007199254740993, 2**63 - 1])
def test_seed_comes_back_exactly(api: Any, seed: int) -> None:
    for answer in (api.post("/v1/videos", json={"prompt": "a", "seed": seed}), api.send_form(prompt="a", seed=seed)):
        assert answer.json()["seed"] == seed
        assert f'"seed":{seed}' in answer.text
        assert api.job(answer.json()["id"])["seed"] == seed


@pytest.mark.parametrize("seed", [-1, None, "", "absent"])
def test_random_seed_is_shown_and_repeats_the_clip(api: Any, seed: Any) -> None:
    fields = {"prompt": "a"} if seed == "absent" else {"prompt": "a", "seed": seed}
    first = api.wait(api.post("/v1/videos", json=fields).json()["id"])
    assert 0 <= first["seed"] < 2**63
    again = api.run("a", seed=first["seed"])
    clips = [api.get(f"/v1/videos/{job['id']}/content?variant=last_frame").content for job in (first, again)]
    assert clips[0] == clips[1]


@pytest.mark.parametrize("seed", [True, 1.5, 1e30, [1], {"a": 1}, 2**63, -2])
def test_bad_seed_in_json(api: Any, seed: Any) -> None:
    refused(api.post("/v1/videos", json={"prompt": "a", "seed": seed}), "seed")


@pytest.mark.parametrize(("asked", "made"), [(1, 1), (2, 1), (4, 5), (5, 5), (120, 121), (123, 121), (124, 125)])
def test_frames_are_rounded_and_said(api: Any, asked: int, made: int) -> None:
    job = api.create(num_frames=asked)
    assert job["num_frames"] == made
    named = [w for w in job["warnings"] if f"num_frames={asked}" in w and str(made) in w]
    assert len(named) == (asked != made)


def test_file_holds_the_frames_of_the_job(api: Any) -> None:
    job = api.run(num_frames=15)
    assert job["num_frames"] == 13 and job["duration_s"] == pytest.approx(13 / 24)
    assert job["seconds"] == "0.5417"


def test_five_seconds_are_121_frames(api: Any) -> None:
    for value in ("5", 5, 5.0):
        assert api.post("/v1/videos", json={"prompt": "a", "seconds": value}).json()["num_frames"] == 121


def test_a_field_that_loses_against_another_is_named(api: Any) -> None:
    job = api.create(seconds=5, num_frames=9)
    assert job["num_frames"] == 9
    assert "seconds=5 is not used: num_frames=9 was given too" in job["warnings"]
    job = api.create(size="96x64", width=128, height=64)
    assert job["size"] == "96x64"
    assert [w for w in job["warnings"] if "not used" in w] == ["width=128 is not used: size=96x64 was given too"]
    same = api.create(seconds=5, num_frames=121, size="96x64", width=96)
    assert not [w for w in same["warnings"] if "not used" in w]


@pytest.mark.parametrize("size", ["864x480", "1280x720", "864X480", "864*480", "256x256"])
def test_legal_sizes(api: Any, size: str) -> None:
    assert api.create(model="full", size=size)["size"] == size.replace("X", "x").replace("*", "x")


@pytest.mark.parametrize(
    ("size", "nearest"),
    [("1920x1080", "1920x1072 or 1920x1088"), ("854x480", "848x480 or 864x480"), ("640x360", "640x352 or 640x368")],
)
def test_size_off_the_grid_names_two_neighbours(api: Any, size: str, nearest: str) -> None:
    message = refused(api.send_form(prompt="a", model="full", size=size), "size")["message"]
    assert "16" in message and nearest in message


@pytest.mark.parametrize("size", ["0x0", "-32x48", "99999x99999", "864", "200x500", "865x481", "64x48", "８６４x480"])
def test_impossible_sizes(api: Any, size: str) -> None:
    refused(api.send_form(prompt="a", model="full", size=size), "size")


def test_width_and_height_count_in_multipart(api: Any) -> None:
    assert api.run(width=80, height=32)["size"] == "80x32"


def test_too_many_pixels(api: Any) -> None:
    message = refused(api.send_form(prompt="a", model="full", size="1920x1920"), "size")["message"]
    assert "1920x1088" in message


def test_distilled_takes_no_guidance(api: Any) -> None:
    assert "1.0" in refused(api.send_form(prompt="a", model="lite", guidance_scale=5), "guidance_scale")["message"]
    job = api.create(model="lite", guidance_scale=1, negative_prompt="bad")
    assert job["guidance_scale"] == 1.0 and job["num_inference_steps"] == 10
    assert any("negative_prompt" in warning for warning in job["warnings"])


def test_unknown_and_unsafe_fields_are_named_and_ignored(api: Any) -> None:
    job = api.create(output_path="/tmp/x", prompt_path="/etc/passwd", flow_shift=3, user="me")
    for name in ("output_path", "prompt_path", "flow_shift", "user"):
        assert any(name in warning for warning in job["warnings"])


def test_bracketed_and_nested_extra_params(api: Any) -> None:
    assert api.create(**{"extra_params[sample_audio]": "false"})["has_audio"] is False
    nested = {"prompt": "a", "extra_params": {"sample_audio": False, "odd": 1}}
    job = api.post("/v1/videos", json=nested).json()
    assert job["has_audio"] is False and any("extra_params.odd" in warning for warning in job["warnings"])


def test_sound_switches_must_agree(api: Any) -> None:
    extra = '{"sample_audio": false}'
    refused(api.send_form(prompt="a", generate_sound="true", extra_params=extra), "generate_sound")
    assert api.create(generate_sound="false", extra_params=extra)["has_audio"] is False


@pytest.mark.parametrize("name", ["sora-2", "unknown", "k7"])
def test_unknown_model(api: Any, name: str) -> None:
    error = refused(api.send_form(prompt="a", model=name), "model", 404)
    assert error["code"] == "model_not_found" and "k6" in error["message"]


def test_empty_model_is_the_default(api: Any) -> None:
    assert api.create(model="")["model"] == "k6"


def test_recipe_must_be_served(api: Any) -> None:
    refused(api.send_form(prompt="a", recipe="turbo"), "recipe")
    assert api.create(recipe="exact")["recipe"] == "exact"


def test_broken_bodies(api: Any) -> None:
    kinds = {"content-type": "application/json"}
    deep = "[" * 50 + "]" * 50
    assert refused(api.post("/v1/videos", content=b"{", headers=kinds), None)["code"] == "invalid_json"
    assert refused(api.post("/v1/videos", content=b"[]", headers=kinds), None)["code"] == "invalid_json"
    nested = f'{{"prompt":"a","x":{deep}}}'
    assert refused(api.post("/v1/videos", content=nested, headers=kinds), None)["code"] == "invalid_json"
    endless = "[" * 200_000
    assert refused(api.post("/v1/videos", content=endless, headers=kinds), None)["code"] == "invalid_json"
    nan = '{"prompt":"a","guidance_scale":NaN}'
    assert refused(api.post("/v1/videos", content=nan, headers=kinds), None)["code"] == "invalid_json"
    form = {"content-type": "multipart/form-data; boundary=x"}
    assert refused(api.post("/v1/videos", content=b"--y\r\n", headers=form), None)["code"] == "invalid_multipart"
    text = {"content-type": "text/plain"}
    assert refused(api.post("/v1/videos", content=b"cat", headers=text), None, 415)["code"] == "unsupported_media_type"


def test_too_many_fields(api: Any) -> None:
    fields = {f"f{number}": "1" for number in range(250)}
    refused(api.send_form(prompt="a", **fields), None)
    refused(api.post("/v1/videos", data={"prompt": "a", **fields}), None)


def test_body_over_the_limit_is_413_naming_it(start_server: Any) -> None:
    api = start_server(limits={"body_bytes": 1 << 20})
    error = refused(api.send_form(prompt="x" * (1 << 20)), None, 413)
    assert error["code"] == "payload_too_large" and "1 MiB" in error["message"]

    def chunks() -> Any:
        for _ in range(40):
            yield b"x" * 65536

    headers = {"content-type": "application/json"}
    refused(api.post("/v1/videos", content=chunks(), headers=headers), None, 413)
    assert api.count() == 0


def test_part_over_a_mebibyte_is_taken(api: Any) -> None:
    """Starlette's own limit would refuse it: a data URL of a picture is easily larger."""
    answer = api.send_form(prompt="a", note="x" * (2 << 20))
    assert answer.status_code == 200


def test_awkward_prompts_come_back_unchanged(api: Any) -> None:
    """T-B8: the file is named by id, so no prompt can lead anywhere."""
    for prompt in ("画" * 90, "**Phase 1** a/b\\c:d", "../../x", "two\nlines", "👨‍👩‍👧"):
        job = api.wait(api.post("/v1/videos", json={"prompt": prompt}).json()["id"])
        assert (job["status"], job["prompt"]) == ("completed", prompt)
        assert job["file_name"] == f"{job['id']}.mp4"


def test_nul_in_prompt(api: Any) -> None:
    refused(api.post("/v1/videos", content=json.dumps({"prompt": "a\0b"}),
                     headers={"content-type": "application/json"}), "prompt")  # fmt: skip


def test_fps_of_its_own_only_where_allowed(start_server: Any) -> None:
    api = start_server(allow_fps=True)
    job = api.run(fps=12)
    assert job["fps"] == 12 and job["duration_s"] == pytest.approx(9 / 12)
