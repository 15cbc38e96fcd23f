// One tooltip for tokens and charts. It only ever sets textContent: what an agent wrote stays text.
"use strict";
const tip = document.getElementById("tip");

function tokenTip(token) {
  const block = token.parentElement.dataset, data = token.dataset;
  const lines = [JSON.stringify(token.textContent) + "  id " + data.ids];
  if (data.logprob === undefined) return lines[0] + "\ngiven, not sampled";
  const probability = 100 * Math.exp(Number(data.logprob));
  lines.push("logprob " + data.logprob + "  (" + probability.toPrecision(3) + "%)");
  lines.push(block.steps ? "step " + block.steps : "no step of the world");
  if (block.advantages) lines.push("advantage " + block.advantages);
  return lines.join("\n");
}

function place(event) {
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18;
  const y = below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
  tip.style.left = Math.max(8, x) + "px";
  tip.style.top = Math.max(8, y) + "px";
}

function point(event) {
  const target = event.target.closest?.("[data-tip], [data-ids]");
  tip.hidden = !target;
  if (!target) return;
  tip.textContent = target.dataset.tip ?? tokenTip(target);
  place(event);
}

document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
