"""Plans: golden ones with their inputs, monotone in every budget, refusals with numbers, every promise of the road."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_machines import FAST, GIB, W1, card, processor, published

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.claims import CONTEXT_BYTES, hoisted_results
from yellowsound.memory.peaks import Peaks, load_peaks, peak_key
from yellowsound.memory.plan import Geometry, Plan, PlanError, plan
from yellowsound.memory.units import Home, describe
from yellowsound.presets import device_names, load_device
from yellowsound.recipe import Recipe
from yellowsound.request import ClipRequest, Defaults

GOLDEN = json.loads((Path(__file__).parent / "golden_plans.json").read_text())["plans"]
NOWHERE = Path("/nonexistent")
GUIDED = dataclasses.replace(W1, branches=2, steps=50)


def row(found: Plan, label: str) -> tuple[int, int, int]:
    """Units of a class in VRAM, RAM and on disk."""
    unit_class = next(c for c in found.classes if c.label == label)
    return unit_class.vram, unit_class.ram, unit_class.disk


def stage(found: Plan, name: str) -> Any:
    return next(s for s in found.stages if s.stage == name)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: "-".join(str(v) for v in g["inputs"].values()))
def test_golden_plans(golden: dict[str, Any]) -> None:
    given_, wanted = golden["inputs"], golden["plan"]
    machine = load_device(given_["device"]).machine(given_["ram_gib"] * GIB, given_["disk_gb_per_second"] * 1e9)
    geometry = dataclasses.replace(W1, tail=given_["tail"], branches=given_["branches"], steps=given_["steps"])
    found = plan(machine, published(given_["checkpoint"]), geometry, peaks=load_peaks(NOWHERE))
    assert [list(row(found, c)) for c in ("fused blocks", "modulations", "text encoder layers")] == [
        wanted["blocks"], wanted["modulations"], wanted["layers"],
    ]  # fmt: skip
    plain = ("slots", "vae_decode", "pinned", "step_bound")
    assert {name: getattr(found, name) for name in plain} == {name: wanted[name] for name in plain}
    assert (found.vram_peak_bytes >> 20, found.ram_peak_bytes >> 20) == (
        wanted["vram_peak_mib"],
        wanted["ram_peak_mib"],
    )
    for name in ("step_seconds", "first_clip_seconds", "warm_clip_seconds"):
        assert getattr(found, name) == pytest.approx(wanted[name], abs=0.1)


def test_reference_machine_never_reads_the_disk_after_lap_one() -> None:
    """32 GB card, 60 GB host: every block has a home, so have modulations and text blocks."""
    found = plan(card(31.3, 55.9), published("pro-distill"), W1, peaks=load_peaks(NOWHERE))
    assert found.step_bytes[Home.DISK] == 0 and row(found, "fused blocks")[2] == 0
    assert row(found, "modulations")[2] == 0 and row(found, "text blocks")[2] == 0
    assert found.pinned and found.slots == 3 and found.ring_bytes == GIB
    # a known prompt starts its first step within two seconds of the compute that the plan expects
    assert found.warm_first_step_seconds - found.step_seconds < 2


def test_lite_is_resident_where_upstream_streams_it() -> None:
    found = plan(card(31.3, 32), published("lite-distill"), W1)
    assert found.is_resident and found.slots == 0 and found.vae_decode == "whole"
    assert row(found, "fused blocks") == (32, 0, 0) and found.step_bytes[Home.VRAM] > 0


@pytest.mark.parametrize("name", ["pro", "pro-distill", "lite"])
def test_every_unit_has_a_home_and_peaks_stay_within_budgets(name: str) -> None:
    model = published(name)
    for vram, ram in ((15.5, 16), (15.5, 64), (23.5, 32), (31.3, 60), (79, 128), (140, 256)):
        machine = card(vram, ram)
        found = plan(machine, model, W1)
        assert set(found.homes) == {unit.name for unit in model.units}
        assert found.vram_peak_bytes <= found.vram_budget_bytes <= machine.vram_total_bytes - GIB  # slack left
        assert found.ram_peak_bytes <= found.ram_budget_bytes
        moved = sum(found.step_bytes.values())
        assert moved == sum(unit.stored_bytes for unit in model.blocks)


def test_same_inputs_give_the_same_plan() -> None:
    first, second = (plan(card(), published("pro-distill"), W1).to_json() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


def cheapest(found: Plan) -> tuple[float, ...]:
    return found.step_seconds, found.first_step_seconds, found.warm_first_step_seconds, found.warm_clip_seconds


@settings(max_examples=60, deadline=None)
@given(
    st.floats(13, 90), st.floats(12, 128), st.floats(0.5e9, 12e9), st.floats(6e9, 60e9),
    st.sampled_from(["vram", "ram", "disk", "link"]), st.floats(1.0, 2.0), st.sampled_from(["pro-distill", "lite"]),
)  # fmt: skip
def test_more_of_anything_never_slows_a_clip(
    vram: float, ram: float, disk: float, link: float, which: str, factor: float, name: str
) -> None:
    """Budgets of one card: what is free or capped, host memory, disk, link. Fast compute, so that bytes show."""
    base = {"free_gib": vram, "ram_gib": ram, "disk": disk, "link": link}
    key = {"vram": "free_gib", "ram": "ram_gib"}.get(which, which)
    richer = base | {key: base[key] * factor}
    try:
        poor = plan(card(95, rates=FAST, **base), published(name), W1)
    except PlanError:
        return
    rich = plan(card(95, rates=FAST, **richer), published(name), W1)
    slack = 1e-9
    assert all(a <= b + slack for a, b in zip(cheapest(rich), cheapest(poor), strict=True))


@settings(max_examples=60, deadline=None)
@given(st.floats(9, 90), st.floats(0.1, 20), st.floats(10, 128))
def test_a_higher_cap_never_slows_a_step(cap_gib: float, more_gib: float, ram: float) -> None:
    caps = [int(c * GIB) for c in (cap_gib, cap_gib + more_gib)]
    try:
        steps = [plan(card(95, ram, rates=FAST), published("pro-distill"), W1, vram_bytes=c).step_seconds for c in caps]
    except PlanError:
        with pytest.raises(PlanError):
            plan(card(95, ram, rates=FAST), published("pro-distill"), W1, vram_bytes=caps[0])
        return
    assert steps[1] <= steps[0] + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(device_names()), st.sampled_from(["pro", "lite"]), st.sampled_from(["bfloat16", "float32"]),
    st.floats(9, 90), st.floats(0.1, 20), st.floats(10, 128), st.sampled_from([16, 480]),
)  # fmt: skip
def test_a_larger_budget_never_slows_a_step_of_any_card(
    preset: str, name: str, dtype: Any, vram: float, more: float, ram: float, height: int
) -> None:
    """A third slot must not take the place of a block that is then read from disk, or fills the link."""
    machine = load_device(preset).machine(int(ram * GIB))
    geometry = dataclasses.replace(W1, frames=1, height=height, dtype=dtype)
    steps = []
    for free in (int(vram * GIB), int((vram + more) * GIB)):
        larger = dataclasses.replace(machine, vram_total_bytes=free, vram_free_bytes=free)
        try:
            steps.append(plan(larger, published(name, dtype), geometry).step_seconds)
        except PlanError:
            steps.append(float("inf"))
    assert steps[1] <= steps[0] * (1 + 1e-9)


def test_a_third_slot_takes_no_blocks_place_where_the_disk_limits() -> None:
    geometry = dataclasses.replace(W1, frames=1, height=16, width=2048, tail=True, branches=2, steps=1, dtype="float32")
    machine = load_device("rtx-5090").machine(32 * GIB).for_one_of(2)
    caps = [plan(machine, published("pro", "float32"), geometry, vram_bytes=cap * GIB) for cap in (14, 15)]
    assert caps[1].step_seconds <= caps[0].step_seconds and [found.slots for found in caps] == [2, 2]


def test_refusals_name_what_lacks_how_much_and_a_remedy() -> None:
    with pytest.raises(
        PlanError, match=r"the denoise stage .* lacks .* \(\d+ bytes\) of VRAM; .*fewer frames"
    ) as small:
        plan(card(7.5, 64), published("pro-distill"), W1)
    assert small.value.missing_bytes > 0
    enough = 7.5 + small.value.missing_bytes / GIB + 0.001
    assert row(plan(card(enough, 64), published("pro-distill"), W1), "fused blocks")[0] == 0
    with pytest.raises(PlanError, match=r"lacks .* of host memory, .*reserve's; use a host with more") as poor:
        plan(card(31.3, 5), published("pro-distill"), W1)
    assert poor.value.missing_bytes > 0
    with pytest.raises(PlanError, match="raise --vram"):
        plan(card(31.3, 64), published("pro-distill"), W1, vram_bytes=6 * GIB)


def test_caps_are_not_exceeded() -> None:
    found = plan(card(140, 256), published("pro-distill"), W1, vram_bytes=32 * GIB, ram_bytes=60 * GIB)
    assert found.vram_peak_bytes <= 32 * GIB and found.ram_peak_bytes <= 60 * GIB
    assert found.vae_decode == "tiled" and row(found, "fused blocks")[1] > 0


def test_a_cap_on_host_memory_binds_by_itself() -> None:
    free, capped = (plan(card(31.3, 128), published("pro-distill"), W1, ram_bytes=cap) for cap in (None, 20 * GIB))
    assert row(free, "fused blocks")[2] == 0 < row(capped, "fused blocks")[2]
    assert capped.ram_budget_bytes == 20 * GIB and 19 * GIB < capped.ram_peak_bytes <= 20 * GIB


def test_a_third_slot_is_taken_only_where_there_is_room() -> None:
    """A large card that is nearly full streams through two slots before it refuses."""
    model = published("pro-distill")
    with pytest.raises(PlanError) as refused:
        plan(card(31.3, 64, free_gib=8), model, W1)
    least = 8 + refused.value.missing_bytes / GIB + 0.001
    slot = model.blocks[0].slot_bytes / GIB
    slots = [plan(card(31.3, 64, free_gib=least + more), model, W1).slots for more in (0, 0.9 * slot, 1.1 * slot)]
    assert slots == [2, 2, 3]


def test_upstreams_words() -> None:
    model = published("lite-distill")
    none = plan(card(79, 64), model, W1, offload="none")
    assert set(none.homes.values()) == {Home.VRAM, Home.DISK}  # disk: vision and head, which nothing uses
    assert [n for n, h in none.homes.items() if h is Home.DISK] == ["text_encoder.vision", "text_encoder.head"]
    module = plan(card(31.3, 64), model, W1, offload="module")
    assert row(module, "fused blocks") == (32, 0, 0) and row(module, "text encoder layers") == (0, 28, 0)
    block = plan(card(31.3, 64), model, W1, offload="block")
    assert row(block, "fused blocks") == (0, 32, 0) and block.slots == 2
    with pytest.raises(PlanError, match=r"--offload none.*lacks.*auto"):
        plan(card(23.5, 64), model, W1, offload="none")
    with pytest.raises(PlanError, match=r"all blocks .*--offload module.*use --offload auto"):
        plan(card(31.3, 64), published("pro"), W1, offload="module")


def test_decode_plan_looks_at_the_card_and_never_at_the_moment() -> None:
    lite = published("lite-distill")
    for free in (31.3, 28, 25.5):
        assert plan(card(31.3, 64, free_gib=free), lite, W1).vae_decode == "whole"
    # what was measured here may move homes, but not pixels
    key = peak_key("decode_whole", lite, W1)
    for recorded in ({}, {key: 1}, {key: 28 * GIB}):
        machine = card(31.3, 64)
        try:
            assert plan(machine, lite, W1, peaks=Peaks(recorded=recorded)).vae_decode == "whole"
        except PlanError as error:
            assert recorded.get(key, 0) > 20 * GIB and "cap --vram to decode in tiles" in str(error)
    assert plan(card(15.5, 64), lite, W1).vae_decode == "tiled"
    assert plan(card(31.3, 60), published("pro-distill"), W1).vae_decode == "tiled"


def test_a_measured_peak_gives_blocks_back() -> None:
    model, machine = published("pro-distill"), card(31.3, 60)
    key = peak_key("denoise", model, W1)
    lean = plan(machine, model, W1, peaks=Peaks(recorded={key: int(4.2 * GIB)}))
    eager = plan(machine, model, W1, peaks=Peaks(recorded={key: int(6.9 * GIB)}))
    assert (row(eager, "fused blocks")[0], row(lean, "fused blocks")[0]) == (26, 30)  # 2.7 GiB in blocks of 0.758
    assert any("activation peaks at 121x480x864 (text, decode) are computed" in warning for warning in lean.warnings)
    known = plan(machine, model, W1, peaks=load_peaks(NOWHERE))
    assert not any("peak" in warning for warning in known.warnings)


def test_what_lives_on_the_device_is_counted_once_in_every_stage() -> None:
    """Lite on 16 GB, where parts of a clip live on the card: what an engine held there, by torch's own count."""
    known = load_peaks(NOWHERE)
    machine = dataclasses.replace(card(139.8, 28), ram_total_bytes=32_000_000_000, ram_available_bytes=31_400_000_000)
    found = plan(machine, published("lite-distill"), W1, vram_bytes=16_000_000_000, peaks=known)
    model = published("lite-distill")
    lived = sum(unit.device_bytes for unit in model.units if found.homes[unit.name] is Home.VRAM)
    held = CONTEXT_BYTES["cuda"] + lived + found.results_bytes
    assert row(found, "vae") == row(found, "text encoder embedding") == (1, 0, 0)
    assert stage(found, "mux").vram_bytes == held
    for name, peak in (("decode", "decode_tiled"), ("audio", "audio"), ("denoise", "denoise")):
        assert stage(found, name).vram_bytes == held + known.find(peak, model, W1)[0]  # type: ignore[arg-type]


def test_hoisted_results_have_a_home() -> None:
    """88 MB of modulations and 126 MB of text for ten BF16 steps; about 2 GB for 50 steps with guidance."""
    ten, _ = hoisted_results(published("pro-distill"), W1)
    assert ten == pytest.approx(88.5e6 + 125.8e6, rel=0.01)
    fifty, step = hoisted_results(published("pro"), GUIDED)
    assert fifty == pytest.approx(2.14e9, rel=0.01) and step == fifty // 50
    found = plan(card(31.3, 64), published("pro"), GUIDED)
    assert found.results_bytes == fifty and found.results_home is Home.RAM


def test_guidance_takes_one_weight_pass_for_both_branches() -> None:
    one, two = (plan(card(31.3, 64), published("pro"), dataclasses.replace(GUIDED, branches=b)) for b in (1, 2))
    assert two.block_seconds == pytest.approx(2 * one.block_seconds)
    assert sum(two.step_bytes.values()) == sum(one.step_bytes.values())


def test_a_picture_adds_a_frame_and_a_stage() -> None:
    with_picture = dataclasses.replace(W1, tail=True)
    assert (W1.visual_tokens, with_picture.visual_tokens, with_picture.key) == (50_220, 51_840, "121x480x864+tail")
    plain, tail = (plan(card(), published("pro-distill"), g) for g in (W1, with_picture))
    assert [s.stage for s in plain.stages] == ["text", "denoise", "decode", "audio", "mux"]
    assert [s.stage for s in tail.stages][:3] == ["text", "image", "denoise"]
    assert tail.block_seconds > 1.04 * plain.block_seconds


def test_few_pins_make_homes_pageable_and_keep_the_ring() -> None:
    found = plan(card(23.5, 64, pins=8 * GIB), published("pro-distill"), W1)
    assert not found.pinned and found.ring_bytes == GIB and any("pageable" in w for w in found.warnings)
    tight = plan(card(23.5, 64, pins=512 << 20), published("pro-distill"), W1)
    assert tight.ring_bytes == 512 << 20
    assert plan(card(23.5, 64, pins=60 * GIB), published("pro-distill"), W1).pinned


def test_several_workers_share_one_host() -> None:
    alone, shared = card(31.3, 64), card(31.3, 64).for_one_of(2)
    one, two = (plan(machine, published("pro-distill"), W1) for machine in (alone, shared))
    assert row(one, "fused blocks")[2] == 0 < row(two, "fused blocks")[2]
    assert 2 * two.ram_peak_bytes <= alone.ram_available_bytes
    assert any("2 workers" in warning for warning in two.warnings)


def test_advice_says_what_the_disk_costs() -> None:
    found = plan(card(15.5, 32, disk=1.67e9, rates=FAST), published("pro-distill"), W1)
    assert found.step_bound == "disk" and row(found, "fused blocks")[2] > 0
    assert "more host memory takes the disk out of the loop" in found.advice[0]
    assert found.host_needs is not None
    least, loop, everything = found.host_needs
    assert least < 32 * GIB < loop < everything
    again = plan(dataclasses.replace(card(15.5, loop / GIB, disk=1.67e9, rates=FAST)), published("pro-distill"), W1)
    assert row(again, "fused blocks")[2] == 0
    compute = plan(card(31.3, 64), published("pro-distill"), W1)
    assert "waits for compute only" in compute.advice[0]


def test_expansion_is_a_stage_of_its_own() -> None:
    found = plan(card(15.5, 64, link=25e9), published("pro-distill"), W1, expand=True)
    assert found.expansion is not None and found.stages[0].stage == "expand"
    assert found.expansion.layers_in_vram + found.expansion.layers_in_ram == 28
    assert 0 < found.expansion.layers_in_ram < 28
    roomy = plan(card(31.3, 64), published("pro-distill"), W1, expand=True)
    assert roomy.expansion is not None and roomy.expansion.layers_in_ram == 0
    assert roomy.expansion.seconds_per_token < found.expansion.seconds_per_token


def test_expansion_is_refused_above_a_limit_with_a_remedy() -> None:
    with pytest.raises(PlanError, match=r"s a token, 1 s is the limit.*expand the prompt elsewhere"):
        plan(card(15.5, 64, link=2e9), published("pro-distill"), W1, expand=True)
    with pytest.raises(PlanError, match=r"prompt expansion: \d+ layers .* host memory"):
        plan(card(12.5, 9), published("lite-distill"), dataclasses.replace(W1, frames=25), expand=True)


def test_a_checkpoint_of_a_transformer_alone_can_be_planned() -> None:
    model = published("pro-distill")
    alone = dataclasses.replace(model, units=model.of("transformer"))
    found = plan(card(31.3, 60), alone, W1)
    assert row(found, "fused blocks") == row(plan(card(31.3, 60), model, W1), "fused blocks")
    assert found.text_slots == 0 and set(found.homes) == {unit.name for unit in alone.units}
    with pytest.raises(PlanError, match="no text encoder"):
        plan(card(31.3, 60), alone, W1, expand=True)


def test_without_a_card_all_lives_in_host_memory_and_a_cap_streams(tiny_distill: Path) -> None:
    model = describe(Checkpoint.open(tiny_distill), "float32")
    small = Geometry(frames=9, height=64, width=96, steps=4, dtype="float32")
    free = plan(processor(), model, small)
    assert row(free, "fused blocks") == (4, 0, 0) and free.is_resident and free.slots == 0
    block, rest = model.blocks[0], model.of("transformer", "rest")[0]
    cap = rest.device_bytes + 2 * block.slot_bytes + block.device_bytes
    assert cap < sum(unit.device_bytes for unit in model.of("transformer"))
    capped = plan(processor(), model, small, vram_bytes=cap)
    assert not capped.is_resident and row(capped, "fused blocks") == (1, 3, 0) and capped.slots == 2
    assert capped.vae_decode == free.vae_decode
    assert not capped.pinned


def test_without_a_card_both_kinds_of_home_share_one_memory() -> None:
    model = published("lite-distill")
    short = dataclasses.replace(W1, frames=25, height=320, width=512)
    found = plan(processor(16), model, short, vram_bytes=3 * GIB)
    assert found.vae_decode == "tiled"  # chosen by what the host can give, not by all that it has
    in_ram = sum(unit.ram_bytes for unit in model.units if found.homes[unit.name] is Home.RAM)
    assert row(found, "text encoder layers")[2] > 0  # so the memory is full
    assert found.vram_peak_bytes + in_ram <= found.ram_budget_bytes == 12 * GIB


def test_geometry_of_a_request() -> None:
    request = ClipRequest(prompt="p", image="x.png", width=480, height=864).resolve(Defaults())
    geometry = Geometry.of(request)
    assert geometry == Geometry(frames=121, height=864, width=480, tail=True, branches=2, steps=50)
    assert geometry.audio_tokens == 218
    assert Geometry(frames=125, height=480, width=864).audio_tokens == 225


def test_a_plan_is_plain_json() -> None:
    found = plan(card(), published("pro-distill"), W1, Recipe(name="reordered", trim_text=True), expand=True)
    read = json.loads(json.dumps(found.to_json()))
    assert read["recipe"] == "reordered" and read["homes"]["transformer.rest"] == "vram"
    assert read["step_bytes"].keys() == {"vram", "ram", "disk"} and read["basis"] == "computed"
    assert read["clips_per_hour"] == pytest.approx(3600 / found.warm_clip_seconds)


def test_planning_imports_no_torch() -> None:
    modules = "yellowsound.memory.plan, yellowsound.memory.probe, yellowsound.weights.manifests, yellowsound.cli.plan"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
