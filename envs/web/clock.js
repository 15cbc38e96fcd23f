// The page's time stands still until `advance` moves it: Date, performance.now, timers, animation frames and
// Math.random are functions of what has happened, not of how fast the machine is.
(() => {
  if (window.__palestraClock) return;
  const EPOCH_MS = 1717243200000, FRAME_MS = 16, MAX_CALLBACKS = 20000;
  const RealDate = Date;
  let now = 0, order = 0, timers = new Map(), frames = new Map(), random = 1;

  class FakeDate extends RealDate {
    constructor(...args) { args.length ? super(...args) : super(EPOCH_MS + now); }
    static now() { return EPOCH_MS + Math.floor(now); }
  }
  window.Date = new Proxy(FakeDate, { apply: () => new FakeDate().toString() });
  performance.now = () => now;

  const schedule = (callback, delay, every, args) => {
    const wait = Math.max(1, Number(delay) || 0);
    timers.set(++order, { at: now + wait, every: every ? wait : null, id: order, callback, args });
    return order;
  };
  window.setTimeout = (callback, delay, ...args) => schedule(callback, delay, false, args);
  window.setInterval = (callback, delay, ...args) => schedule(callback, delay, true, args);
  window.clearTimeout = window.clearInterval = (id) => { timers.delete(Number(id)); };
  window.requestAnimationFrame = (callback) => {
    const id = schedule((at) => callback(at), FRAME_MS - (now % FRAME_MS), false, []);
    frames.set(id, true);
    return id;
  };
  window.cancelAnimationFrame = (id) => { frames.delete(id); timers.delete(id); };
  window.requestIdleCallback = (callback) =>
    schedule(() => callback({ didTimeout: false, timeRemaining: () => 10 }), 1, false, []);
  window.cancelIdleCallback = window.clearTimeout;

  Math.random = () => {  // mulberry32
    random = (random + 0x6d2b79f5) | 0;
    let t = Math.imul(random ^ (random >>> 15), 1 | random);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };

  const fire = (timer) => {
    if (timer.every === null) timers.delete(timer.id);
    else timer.at += timer.every;
    const args = frames.delete(timer.id) ? [now] : timer.args;
    try {
      typeof timer.callback === 'function' ? timer.callback(...args) : (0, eval)(String(timer.callback));
    } catch (error) { console.error(error); }
  };
  const next = () => {
    let found = null;
    for (const t of timers.values())
      if (found === null || t.at < found.at || (t.at === found.at && t.id < found.id)) found = t;
    return found;
  };
  const clock = {
    // Let `milliseconds` pass; timers that come due run in order.
    advance(milliseconds) {
      const until = now + milliseconds;
      for (let calls = 0; calls < MAX_CALLBACKS; calls++) {
        const timer = next();
        if (timer === null || timer.at > until) break;
        now = Math.max(now, timer.at);
        fire(timer);
      }
      now = until;
    },
    // As in a new document: nothing pending, time zero.
    reset() { now = 0; timers.clear(); frames.clear(); },
  };
  // Nothing moves between two steps.
  const still = new CSSStyleSheet();
  still.replaceSync('*, *::before, *::after { transition: none !important; animation: none !important; ' +
    'caret-color: transparent !important; scroll-behavior: auto !important }');
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, still];
  Object.defineProperty(window, '__palestraClock', { value: Object.freeze(clock) });
})();
