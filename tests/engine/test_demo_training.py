"""Every training stage of the demo runs on a CPU, goes on from its weights, and only judged weights are exported."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors import safe_open

from yellowsound.demo import CHECKPOINT

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_demo"
sys.path.insert(0, str(EXAMPLE))
SMALL = {"clips": 8, "first": 4, "chunk": 4}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "work"
    shutil.copytree(CHECKPOINT, folder)
    torch.manual_seed(0)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "diffusion_pytorch_model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    """Share of the weights that differ; names, shapes and stored types must be the same."""
    assert {n: (t.shape, t.dtype) for n, t in before.items()} == {n: (t.shape, t.dtype) for n, t in after.items()}
    return sum(int((before[n] != after[n]).sum()) for n in before) / sum(t.numel() for t in before.values())


def steps_of(work: Path) -> dict[str, int]:
    """The last step that each stage's log names."""
    logs = {log.stem: log.read_text().splitlines() for log in (work / "logs").glob("*.jsonl")}
    return {
        stage: max(json.loads(x).get("step", 0) for x in lines) for stage, lines in logs.items() if stage != "store"
    }


@pytest.fixture
def counted(monkeypatch):
    """Budgets of four steps instead of seconds: what is learnt must not depend on how busy the machine is."""
    import progress

    monkeypatch.setattr(progress.Budget, "part", property(lambda self: min(self.steps / 4, 1.0)))

    def goes_on(self):
        self.steps += 1
        return self.steps <= 4

    monkeypatch.setattr(progress.Budget, "goes_on", goes_on)


@pytest.mark.slow
def test_all_stages_train_and_write_what_they_read(work, counted):
    import architecture
    import render
    import train_audio
    import train_flow
    import train_piflow
    import train_text
    import train_vae

    parts = {"vae": work / "common/vae", "audio_vae": work / "common/audio_vae", "vocoder": work / "common/vocoder"}
    parts |= {flavour: work / flavour / "transformer" for flavour in architecture.FLAVOURS}
    before = {name: weights(folder) for name, folder in parts.items()}
    train_text.train(work, 1.0, "cpu", batch=16)
    train_vae.train(work, 1.0, "cpu", batch=1, crop=(32, 48), phases=((0.5, 1), (1.0, 5)), whole_from=2.0)
    train_audio.train(work, 2.0, "cpu", batch=4)
    train_flow.fill(work, time.time() + 60, "cpu", clips=8, chunk=4, window=render.CUTOUT)
    train_flow.train(work, time.time(), "cpu", batch=2, fresh=False, window=render.CUTOUT, **SMALL)
    train_piflow.train(work, time.time(), "cpu", guidance=2.0, batch=2, fresh=True, window=render.CUTOUT, **SMALL)
    for name, folder in parts.items():
        assert (folder / "READY").exists(), name
        assert changed(before[name], weights(folder)) > 0.2, name
    assert all(count > 0 for count in steps_of(work).values())
    lines = [json.loads(x) for log in sorted((work / "logs").glob("*.jsonl")) for x in log.read_text().splitlines()]
    assert {x["stage"] for x in lines} == {"text", "vae", "audio", "store", "flow", "piflow"}
    assert all(
        torch.isfinite(torch.tensor(x[k])) for x in lines for k in ("picture", "mel", "video", "audio") if k in x
    )
    _plot_and_export(work)


def _plot_and_export(work: Path) -> None:
    import export
    import plot

    drawing = plot.svg(plot.curves(work / "logs"))
    assert drawing.count("<polyline") >= 6 and "vae picture" in drawing
    package, stages = work.parent / "package", [dict.fromkeys(export.TOLD, "-")]
    with pytest.raises(SystemExit, match="score the weights first"):
        export.export(work, package, stages)
    with pytest.raises(SystemExit, match="does not tell commit"):
        export.export(work, package, [{k: "-" for k in export.TOLD - {"commit"}}])
    for name in ("reconstruction", "flow", "piflow"):
        (work / f"numbers_{name}.json").write_text('{"guidance": 1.0}')
    with patch.object(export, "_git", lambda *_: "0123abc"):
        told = export.export(work, package, stages)
    assert json.loads((package / "PROVENANCE.json").read_text()) == told and told["trained"]
    assert changed(weights(work / "common/vocoder"), weights(package / "common/vocoder")) == 0
    assert not list(package.rglob("READY")) and "_name_or_path" not in (package / "common/vae/config.json").read_text()
    (work / "flow/transformer/diffusion_pytorch_model.safetensors").touch()
    with pytest.raises(SystemExit, match="older than the weights"):
        export.export(work, package, stages)


@pytest.mark.slow
def test_building_twice_gives_the_same_bytes_in_the_packaged_shapes(tmp_path):
    import build

    for name in ("one", "two"):
        build.build(tmp_path / name, 0)
    one, two = (json.loads((tmp_path / name / "PROVENANCE.json").read_text()) for name in ("one", "two"))
    assert one == two and one["trained"] is False
    packaged = json.loads((CHECKPOINT / "PROVENANCE.json").read_text())["sha256"]
    assert one["sha256"].keys() == packaged.keys()
    for place in (p for p in packaged if p.endswith("diffusion_pytorch_model.safetensors")):
        folder = Path(place).parent
        assert changed(weights(tmp_path / "one" / folder), weights(CHECKPOINT / folder)) > 0.5, place


def test_the_package_tells_how_it_was_trained_and_judged():
    import architecture
    import export

    told = json.loads((CHECKPOINT / "PROVENANCE.json").read_text())
    assert told["trained"] is True
    assert all(stage.keys() >= export.TOLD for stage in told["stages"])
    assert told["stages"] == json.loads((EXAMPLE / "packaged.json").read_text())
    for flavour in architecture.FLAVOURS:
        judged, defaults = told["judge"][flavour], json.loads((CHECKPOINT / flavour / "yellowsound.json").read_text())
        assert defaults["guidance_scale"] == judged["guidance"] and defaults["num_inference_steps"] == judged["steps"]


def test_packaged_files_are_those_of_the_provenance():
    import hashlib

    provenance = json.loads((CHECKPOINT / "PROVENANCE.json").read_text())
    files = [p for f in ("common", "flow", "piflow") for p in (CHECKPOINT / f).rglob("*") if p.is_file()]
    found = {p.relative_to(CHECKPOINT).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    assert found == provenance["sha256"]


def test_kept_clips_of_another_world_are_not_used(tmp_path, monkeypatch, capsys):
    import latents
    import render

    shutil.copytree(CHECKPOINT, tmp_path / "work")
    text = latents.TextEncoders(tmp_path / "work", "cpu")

    def new(seed):
        return latents.new_store(
            tmp_path / "work", text, 2, seed, lambda: None, render.CUTOUT, first=2, chunk=2
        )  # fmt: skip

    first = new(1)
    latents.keep(first, tmp_path / "work")
    assert torch.equal(new(2).video, first.video) and not capsys.readouterr().out
    monkeypatch.setattr(latents, "_world", lambda: "another")
    assert not torch.equal(new(2).video, first.video)
    assert "of another world, not used" in capsys.readouterr().out


def test_the_video_autoencoder_starts_with_norms_that_change_no_spread():
    """What a norm passes on is what it got less one mean, up to a few per cent, for a dark clip as for a bright one."""
    import build

    torch.manual_seed(0)
    vae, seen = build.new_vae().eval(), []
    for module in vae.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.register_forward_hook(lambda _, given, made: seen.append((given[0][:, 2:], made[:, 2:])))
    with torch.no_grad():
        for level in (-0.8, 0.8):
            vae(level + 0.2 * torch.rand(1, 3, 5, 32, 32))
    assert len(seen) > 40
    for given, made in seen:
        assert float((made - (given - given.mean())).norm() / given.norm()) < 0.15


def test_the_constants_stay_constant_under_training():
    import build
    import train_vae

    torch.manual_seed(0)
    vae = build.new_vae()
    masks = build.constant_masks(vae)
    before = [p.detach().clone() for p, _ in masks]
    with torch.no_grad():
        for parameter, _ in masks:
            parameter.add_(1.0)
    train_vae.keep_constants(masks)
    for (parameter, mask), old in zip(masks, before, strict=True):
        assert torch.equal(parameter[mask == 0], old[mask == 0]) and bool((mask == 0).any())


def test_a_caption_means_what_it_says():
    import train_text

    from yellowsound.demo.world import Prompt, Scene

    scene = Scene("ball", "red", "blue", "dark", "bounce", 2, "natural")
    said = train_text.meaning(Prompt("a red ball bounces twice on a blue floor", scene, True))
    words = [f[i] if i < len(f) else "" for f, i in zip(train_text.FIELDS, said, strict=True)]
    assert words == ["ball", "red", "blue", "", "bounce", "2", "knock"]
    assert train_text.meaning(Prompt("it bounces twice", scene, False))[:4] == train_text.UNSAID[:4]
    assert float(train_text.codes([said]).sum()) == train_text.LEVEL * len(train_text.FIELDS)


def test_a_student_starts_as_its_teacher():
    import architecture
    import build
    import train_piflow

    torch.manual_seed(0)
    teacher = build.new_transformer("flow").eval()
    student = train_piflow.widened(teacher).eval()
    given = {
        "hidden_states": torch.randn(1, 1, 2, 2, 33),
        "audio_hidden_states": torch.randn(1, 3, 40),
        "encoder_hidden_states": torch.randn(1, 4, architecture.TEXT_WIDTH),
        "pooled_projections": torch.randn(1, architecture.POOLED_WIDTH),
        "timestep": torch.tensor([500.0]),
        "return_dict": False,
    }
    with torch.no_grad():
        taught, learnt = teacher(**given), student(**given)
    for one, many in zip(taught, learnt, strict=True):
        grid = many.unflatten(-1, (architecture.N_GRID, one.shape[-1]))
        torch.testing.assert_close(grid, one.unsqueeze(-2).expand_as(grid))


def test_the_policy_walks_as_the_scheduler_does():
    """One segment with the scheduler's own substeps ends where PiflowScheduler.step ends."""
    import architecture
    import train_piflow
    from diffusers import PiflowScheduler

    torch.manual_seed(0)
    x, velocity = torch.randn(2, 3, 40), torch.randn(2, 3, 400)
    scheduler = PiflowScheduler(shift=architecture.SHIFT, n_grid=architecture.N_GRID)
    scheduler.set_timesteps(train_piflow.STEPS)
    number, sigma = torch.tensor([0, 0]), torch.ones(2)
    grid = train_piflow._clean(x, velocity, sigma)
    start, end = train_piflow.raw_start(number), train_piflow.raw_end(number)
    walked, steps = x, 13
    before = train_piflow.SUBSTEPS
    train_piflow.SUBSTEPS = steps
    try:
        walked = train_piflow.walk(x, grid, number, start, end)
    finally:
        train_piflow.SUBSTEPS = before
    stepped = scheduler.step(velocity, scheduler.timesteps[0], x, return_dict=False)[0]
    torch.testing.assert_close(walked, stepped, rtol=1e-4, atol=1e-4)


def test_guidance_and_noise_levels_agree_with_the_schedulers():
    import architecture
    from denoiser import shifted
    from diffusers import PiflowScheduler

    scheduler = PiflowScheduler(shift=architecture.SHIFT)
    scheduler.set_timesteps(10)
    torch.testing.assert_close(shifted(scheduler._piflow_raw_timesteps, architecture.SHIFT), scheduler.sigmas[:-1])
