// Two clips in step: the left one leads, the right one follows by small changes of its rate, and jumps when far off.
const view = document.getElementById("compare");
if (view) start(view);

function start(view) {
  const [lead, follow] = view.querySelectorAll("video");
  const [play, place, where] = ["play", "place", "where"].map((id) => document.getElementById(id));
  const fps = Number(view.dataset.fps);
  const last = Number(view.dataset.frames) - 1;
  const seen = new Map(); // video -> what it presented last: media time, and when

  const now = (video) => {
    const frame = seen.get(video);
    if (!frame || video.paused || video.seeking) return video.currentTime;
    return frame.media + ((performance.now() - frame.at) / 1000) * video.playbackRate;
  };
  const frameOf = (time) => Math.min(last, Math.max(0, Math.floor(time * fps + 0.01)));
  const limit = (value, most) => Math.min(most, Math.max(-most, value));

  function keepInStep() {
    if (lead.paused || lead.seeking || follow.seeking || follow.ended) return;
    const behind = now(lead) - now(follow);
    view.dataset.offsetFrames = (behind * fps).toFixed(3);
    if (Math.abs(behind) > 0.3) follow.currentTime = now(lead);
    follow.playbackRate = 1 + limit(behind * 2, 0.2);
  }

  function tell() {
    const frame = frameOf(seen.get(lead)?.media ?? lead.currentTime);
    if (document.activeElement !== place || !lead.paused) place.value = frame;
    where.textContent = `frame ${frame + 1} of ${last + 1}`;
    view.dataset.frame = frame;
  }

  function watch(video) {
    video.requestVideoFrameCallback((_, frame) => {
      seen.set(video, { media: frame.mediaTime, at: frame.expectedDisplayTime });
      keepInStep();
      if (video === lead) tell();
      watch(video);
    });
  }

  function goTo(frame) {
    lead.pause();
    follow.pause();
    const time = (Math.min(last, Math.max(0, frame)) + 0.5) / fps; // the middle of a frame is never between two
    seen.clear();
    for (const video of [lead, follow]) video.currentTime = time;
    place.value = frameOf(time);
  }

  async function run() {
    if (lead.ended || frameOf(lead.currentTime) >= last) goTo(0);
    follow.currentTime = lead.currentTime;
    follow.playbackRate = 1;
    await Promise.all([lead.play(), follow.play()]).catch(() => {});
  }

  const toggle = () => (lead.paused ? run() : (lead.pause(), follow.pause()));
  const present = () => frameOf(seen.get(lead)?.media ?? lead.currentTime);
  const sayPlaying = () => {
    play.textContent = lead.paused ? "Play" : "Pause";
    play.setAttribute("aria-pressed", String(!lead.paused));
  };

  play.addEventListener("click", toggle);
  document.getElementById("back").addEventListener("click", () => goTo(present() - 1));
  document.getElementById("forth").addEventListener("click", () => goTo(present() + 1));
  place.addEventListener("input", () => goTo(Number(place.value)));
  lead.addEventListener("play", sayPlaying);
  lead.addEventListener("pause", () => (follow.pause(), (follow.currentTime = lead.currentTime), sayPlaying()));
  lead.addEventListener("ended", run);
  document.getElementById("sound").addEventListener("change", (event) => {
    [lead, follow].forEach((video, side) => (video.muted = event.target.value !== String(side)));
  });
  document.getElementById("difference").addEventListener("change", (event) => {
    view.classList.toggle("difference", event.target.checked);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea, button, a") || event.ctrlKey || event.metaKey) return;
    const act = { " ": toggle, ArrowLeft: () => goTo(present() - 1), ArrowRight: () => goTo(present() + 1) }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  watch(lead);
  watch(follow);
}
