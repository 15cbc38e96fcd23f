// Runs in an isolated world: it shares the page's elements and none of its variables, and the page cannot see it.
// Evaluates to an object with `observe`, `locate` and the few operations that need an element at hand.
((settings) => {
  const ids = new WeakMap(), elements = new Map();
  let count = 0;
  const idOf = (el) => {
    let id = ids.get(el);
    if (id === undefined) { id = ++count; ids.set(el, id); elements.set(id, new WeakRef(el)); }
    return id;
  };
  // The elements that were met after the first `kept` ones have no number any more.
  const forget = (kept) => {
    for (const [id, ref] of elements) {
      if (id <= kept) continue;
      const el = ref.deref();
      if (el) ids.delete(el);
      elements.delete(id);
    }
    count = kept;
  };
  const after = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
  const squash = (text) => (text || '').replace(/[\s\u00a0]+/g, ' ').trim();
  const cut = (text) => text.length > settings.maxName ? text.slice(0, settings.maxName) + '...' : text;

  const TAGS = {
    A: 'link', BUTTON: 'button', TEXTAREA: 'textbox', SELECT: 'combobox', OPTION: 'option', IMG: 'img',
    H1: 'heading', H2: 'heading', H3: 'heading', H4: 'heading', H5: 'heading', H6: 'heading',
    TABLE: 'table', TR: 'row', TD: 'cell', TH: 'columnheader', UL: 'list', OL: 'list', LI: 'listitem',
    NAV: 'navigation', MAIN: 'main', DIALOG: 'dialog', SUMMARY: 'button', PROGRESS: 'progressbar',
    METER: 'meter', IFRAME: 'iframe', CANVAS: 'canvas', VIDEO: 'video', FIELDSET: 'group', OUTPUT: 'status',
    LABEL: 'label', P: 'paragraph', FORM: 'form', ARTICLE: 'article',
  };
  const INPUTS = {
    button: 'button', submit: 'button', reset: 'button', image: 'button', checkbox: 'checkbox', radio: 'radio',
    range: 'slider', number: 'spinbutton', search: 'searchbox', color: 'colorpicker', file: 'filepicker',
    date: 'datepicker', time: 'timepicker', 'datetime-local': 'datepicker', month: 'datepicker', week: 'datepicker',
  };
  const SHAPES = new Set(['rect', 'circle', 'ellipse', 'polygon', 'polyline', 'line', 'path', 'text', 'image']);
  const CONTENT = new Set(['button', 'link', 'heading', 'option', 'tab', 'menuitem', 'columnheader', 'cell',
    'listitem', 'label', 'paragraph', 'alert', 'status', 'treeitem', 'gridcell']);
  const QUIET = new Set(['list', 'form', 'paragraph', 'label', 'article', 'group', 'main', 'navigation', 'table',
    'row', 'cell', 'listitem']);
  const FORMAT = new Set(['B', 'I', 'EM', 'STRONG', 'U', 'BR', 'SMALL', 'CODE', 'SUP', 'SUB', 'SPAN', 'MARK']);
  const SKIP = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'META', 'LINK', 'TITLE', 'DEFS']);

  const isInput = (el) => el.tagName === 'INPUT' || el.tagName === 'TEXTAREA' || el.tagName === 'SELECT';
  const roleOf = (el) => {
    const role = el.getAttribute('role');
    if (role && role !== 'presentation' && role !== 'none') return role.split(' ')[0];
    if (el.tagName === 'INPUT') return INPUTS[el.type] || 'textbox';
    if (el.tagName === 'A' && !el.hasAttribute('href')) return '';
    if (el.tagName === 'SELECT' && (el.multiple || el.size > 1)) return 'listbox';
    if (el.isContentEditable && !(el.parentElement && el.parentElement.isContentEditable)) return 'textbox';
    if (el instanceof SVGElement) return SHAPES.has(el.tagName) ? el.tagName : '';
    return TAGS[el.tagName] || '';
  };
  const byIds = (el, names) => names.split(/\s+/).map((n) => el.ownerDocument.getElementById(n))
    .filter(Boolean).map((e) => squash(e.textContent)).join(' ');
  // A label may hold its control: the options of a list and the text in an area are no part of the name.
  const labelText = (label) => {
    const walker = label.ownerDocument.createTreeWalker(label, NodeFilter.SHOW_TEXT);
    let text = '', node;
    while ((node = walker.nextNode()))
      if (!node.parentElement.closest('select,textarea,button,script,style')) text += ' ' + node.nodeValue;
    return squash(text);
  };
  const nameOf = (el, role) => {
    const labelled = el.getAttribute('aria-labelledby');
    if (labelled) return byIds(el, labelled);
    const aria = el.getAttribute('aria-label');
    if (aria) return squash(aria);
    if (isInput(el)) {
      if (['button', 'submit', 'reset'].includes(el.type) && el.tagName === 'INPUT')
        return el.value || (el.type === 'submit' ? 'Submit' : el.type);
      const labels = [...(el.labels || [])].map(labelText).join(' ');
      return labels || squash(el.title || el.placeholder || el.alt || '');
    }
    if (el.alt) return squash(el.alt);
    if (CONTENT.has(role)) {
      const text = squash(el.textContent);
      if (text) return text;
      const image = el.querySelector && el.querySelector('img[alt]');
      if (image) return squash(image.alt);
    }
    return squash(el.title && typeof el.title === 'string' ? el.title : '');
  };
  const colour = (css) => css && css !== 'rgba(0, 0, 0, 0)' && css !== 'transparent' ? css : '';
  const shapeState = (el, style) => {
    const box = el.getBoundingClientRect();
    const own = el.getAttribute('fill') || el.style.fill || colour(style.fill);
    const state = own && own !== 'none' ? [`fill=${own}`] : [];
    state.push(`at=${Math.round(box.x + box.width / 2)},${Math.round(box.y + box.height / 2)}`);
    state.push(`size=${Math.round(box.width)}x${Math.round(box.height)}`);
    return state;
  };
  const statesOf = (el, role, style) => {
    const states = [];
    const aria = (name) => el.getAttribute('aria-' + name);
    if (el instanceof SVGElement || el.tagName === 'CANVAS') states.push(...shapeState(el, style));
    if (el.checked || aria('checked') === 'true') states.push('checked');
    if (el.disabled || aria('disabled') === 'true') states.push('disabled');
    if ((el.tagName === 'OPTION' && el.selected) || aria('selected') === 'true') states.push('selected');
    if (aria('pressed') === 'true') states.push('pressed');
    const expanded = aria('expanded') ||
      (el.tagName === 'SUMMARY' && el.parentElement ? String(el.parentElement.open) : null);
    if (expanded) states.push(expanded === 'true' ? 'expanded' : 'collapsed');
    if (el.readOnly) states.push('readonly');
    if (el.required) states.push('required');
    if (el === el.ownerDocument.activeElement && el !== el.ownerDocument.body) states.push('focused');
    if (role === 'slider' && el.tagName !== 'INPUT' && aria('valuenow') !== null) states.push(`value=${aria('valuenow')}`);
    return states;
  };
  const valueOf = (el) => {
    if (el.tagName === 'SELECT')
      return [...el.selectedOptions].map((o) => squash(o.textContent)).join(', ');
    if (el.tagName === 'TEXTAREA') return el.value;
    if (el.tagName !== 'INPUT') return el.isContentEditable && roleOf(el) === 'textbox' ? squash(el.innerText) : null;
    if (el.type === 'password') return '*'.repeat(el.value.length);
    if (el.type === 'file') return [...el.files].map((f) => f.name).join(', ');
    if (['checkbox', 'radio', 'button', 'submit', 'reset', 'image'].includes(el.type)) return null;
    return el.value;
  };
  const visible = (el, style) => {
    if (style.display === 'none') return false;
    if (style.display === 'contents' || el.tagName === 'OPTION') return true;
    if (style.visibility !== 'visible') return false;
    if (parseFloat(style.opacity) === 0 && !isInput(el)) return false;
    return true;
  };
  const plain = (el) => {
    for (const child of el.children) {
      if (!FORMAT.has(child.tagName) || child.attributes.length || !plain(child)) return false;
    }
    return true;
  };

  const INTERACTIVE = 'a[href],button,input,select,textarea,[onclick],[tabindex],[role],[contenteditable],ul,ol,table';
  const inert = (el) => !el.querySelector(INTERACTIVE);
  const ownText = (el) => squash([...el.childNodes].filter((c) => c.nodeType === Node.TEXT_NODE)
    .map((c) => c.nodeValue).join(' '));

  const walk = (el, depth, out) => {
    if (out.length >= settings.maxNodes || SKIP.has(el.tagName)) return;
    if (el.getAttribute('aria-hidden') === 'true' || (settings.ignore && el.matches(settings.ignore))) return;
    const style = el.ownerDocument.defaultView.getComputedStyle(el);
    if (style.display === 'none' || (style.display !== 'contents' && parseFloat(style.opacity) === 0 && !isInput(el)))
      return;
    expectStyle(el, style);
    const shown = visible(el, style);
    let role = roleOf(el);
    const leaf = el.tagName === 'text' || (CONTENT.has(role) && role !== 'paragraph' && inert(el)) ||
      (plain(el) && !(el instanceof SVGSVGElement));
    const text = leaf ? squash(el.textContent) : '';
    if (!role && leaf && text) role = 'text';
    if (!role && !el.children.length && !text) {
      const box = el.getBoundingClientRect();
      const marked = colour(style.backgroundColor) || style.cursor === 'pointer' || style.backgroundImage !== 'none' ||
        (style.content !== 'normal' && style.content !== 'none');
      if (box.width > 3 && box.height > 3 && marked) role = 'box';
    }
    if (!role && (el.hasAttribute('onclick') || el.hasAttribute('tabindex'))) role = 'clickable';
    let listed = Boolean(role) && shown;
    if (listed && QUIET.has(role) && !leaf && !el.hasAttribute('aria-label')) listed = role === 'row' || role === 'dialog';
    if (listed && QUIET.has(role) && leaf && !text) listed = false;
    if (listed && el instanceof SVGElement) {
      const box = el.getBoundingClientRect();
      if (!box.width && !box.height) listed = false;
    }
    if (listed) {
      let name = role === 'text' ? text : nameOf(el, role);
      if (!name && leaf && QUIET.has(role)) name = text;
      if (!leaf && CONTENT.has(role) && !el.getAttribute('aria-label')) name = ownText(el);
      if (role === 'row') name = '';
      if (role === 'box') {
        const own = el.getAttribute('data-color') || el.style.backgroundColor || colour(style.backgroundColor);
        name = name || squash(el.className && typeof el.className === 'string' ? el.className : '');
        out.push([depth, idOf(el), role, cut(name), own ? [`color=${own}`] : [], null]);
      } else {
        const states = statesOf(el, role, style);
        if (el.tagName === 'SELECT' && role === 'combobox') {
          const options = [...el.options].slice(0, settings.maxOptions).map((o) => squash(o.textContent));
          if (el.options.length > settings.maxOptions) options.push('...');
          states.push(`options=${options.join('|')}`);
        }
        out.push([depth, idOf(el), role, cut(name), states, valueOf(el)]);
      }
    }
    if (role === 'combobox' && el.tagName === 'SELECT') return;
    if (el.tagName === 'TEXTAREA' || (listed && leaf)) return;
    const inner = depth + (listed ? 1 : 0);
    const named = (listed && CONTENT.has(role)) || (el.tagName === 'LABEL' && el.control && el.contains(el.control));
    if (el.tagName === 'IFRAME') {
      const body = el.contentDocument && el.contentDocument.body;
      if (body) { expectImages(el.contentDocument); walk(body, inner, out); }
      return;
    }
    const root = el.shadowRoot || el;
    for (const child of root.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) {
        const words = squash(child.nodeValue);
        if (words && shown && !named && out.length < settings.maxNodes) out.push([inner, 0, 'text', cut(words), [], null]);
      } else if (child.nodeType === Node.ELEMENT_NODE) walk(child, inner, out);
    }
    if (el.tagName === 'SLOT') for (const child of el.assignedElements()) walk(child, inner, out);
  };

  // Pictures that have a say in what is seen and are still on their way. Those of style sheets are asked for once
  // more: the document gets the same answer, and tells when it is there.
  const settledUrls = new Set(), settledImages = new WeakSet();
  let awaited = [];
  const expect = (key, known, picture) => {
    if (known.has(key)) return;
    awaited.push({ key, known, come: new Promise((done) => {
      for (const name of ['load', 'error']) picture.addEventListener(name, done, { once: true });
    }) });
  };
  const expectUrl = (url) => {
    if (settledUrls.has(url)) return;
    const picture = new Image();
    expect(url, settledUrls, picture);
    picture.src = url;
  };
  const near = (el) => {
    const box = el.getBoundingClientRect();
    return box.bottom >= 0 && box.right >= 0 && box.top <= window.innerHeight && box.left <= window.innerWidth;
  };
  const expectImages = (page) => {
    for (const image of page.images)
      if (!image.complete && (image.loading !== 'lazy' || near(image))) expect(image, settledImages, image);
  };
  const expectStyle = (el, style) => {
    for (const css of [style.content, style.backgroundImage])
      if (css.includes('url(')) for (const [, url] of css.matchAll(/url\("([^"]*)"\)/g)) expectUrl(url);
    if (el.tagName === 'INPUT' && el.type === 'image' && el.src) expectUrl(el.src);
  };
  // All of them have come or failed; those that take too long are not waited for again.
  const pictures = async () => {
    const all = awaited;
    await Promise.race([Promise.all(all.map((a) => a.come)), after(settings.pictureMs)]);
    for (const { key, known } of all) known.add(key);
  };

  const observe = () => {
    const out = [];
    awaited = [];
    expectImages(document);
    if (document.body) walk(document.body, 0, out);
    const page = document.scrollingElement || document.documentElement;
    const focus = document.activeElement;
    return {
      url: location.href, title: document.title, nodes: out,
      focused: focus && focus !== document.body && elements.has(ids.get(focus)) ? ids.get(focus) : 0,
      scroll: [Math.round(page.scrollTop), page.scrollHeight, window.innerHeight],
      complete: out.length < settings.maxNodes,
    };
  };
  // After the tasks that the input has queued (a form's submission, say), so that what it did shows, and once the
  // pictures are there: what is seen must not depend on how fast they come.
  const settled = async (fresh) => {
    for (const until = performance.now() + settings.pictureMs; ;) {
      await after(0);
      if (fresh) forget(0);
      const met = count, view = observe();
      if (!awaited.length || performance.now() > until) return view;
      forget(met);
      await pictures();
    }
  };

  const offset = (el) => {
    let x = 0, y = 0;
    for (let w = el.ownerDocument.defaultView; w && w.frameElement; w = w.parent) {
      const box = w.frameElement.getBoundingClientRect();
      x += box.x + w.frameElement.clientLeft; y += box.y + w.frameElement.clientTop;
    }
    return [x, y];
  };
  const byName = (role, name, nth) => {
    const nodes = observe().nodes.filter((n) => n[1] && n[2] === role && n[3] === name);
    return nodes.length < nth ? null : nodes[nth - 1][1];
  };
  const find = (target) => {
    const id = Array.isArray(target) ? byName(...target) : target;
    const el = id && elements.get(id) && elements.get(id).deref();
    return el && el.isConnected ? el : null;
  };
  const missing = (target) => ({ error: Array.isArray(target)
    ? `there is no ${target[0]} ${JSON.stringify(target[1])}` + (target[2] > 1 ? ` #${target[2]}` : '') + ' on this page'
    : `there is no element [${target}] on this page` });
  const centre = (el) => {
    const rects = [...el.getClientRects()].filter((r) => r.width > 0 && r.height > 0);
    const box = rects[0] || el.getBoundingClientRect(), [dx, dy] = offset(el);
    return { x: box.x + box.width / 2, y: box.y + box.height / 2, dx, dy, empty: !rects.length };
  };
  const inView = (el) => {
    const box = el.getBoundingClientRect(), view = el.ownerDocument.defaultView;
    return box.top >= 0 && box.left >= 0 && box.bottom <= view.innerHeight && box.right <= view.innerWidth;
  };
  // Where to put the mouse for an element: its centre, in view; an error where something else lies above it.
  const locate = (target) => {
    const el = find(target);
    if (!el) return missing(target);
    if (!inView(el)) el.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
    const at = centre(el);
    if (at.empty) return { error: `element [${idOf(el)}] has no size: it cannot be clicked` };
    if (el.disabled) return { error: `element [${idOf(el)}] is disabled` };
    const root = el.getRootNode();
    const top = (root.elementFromPoint ? root : el.ownerDocument).elementFromPoint(at.x, at.y);
    const label = top && top.closest('label');
    const reached = top && (el.contains(top) || top.contains(el) || (label && label.contains(el)) || el instanceof SVGElement);
    if (!reached && top) return { error: `element [${idOf(el)}] is covered by [${idOf(top)}] ${top.tagName.toLowerCase()}` };
    return { x: at.x + at.dx, y: at.y + at.dy, id: idOf(el) };
  };
  // Outside of a list box the browser scrolls it for as long as the mouse is down: by its own time, not the page's.
  const drag = (x, y, toX, toY) => {
    const el = document.elementFromPoint(x, y), list = el && el.closest('select');
    if (!list) return {};
    const r = list.getBoundingClientRect();
    if (toX >= r.left && toX < r.right && toY >= r.top && toY < r.bottom) return {};
    return { error: `a drag that begins in the list [${idOf(list)}] has to end in it` };
  };
  const box = (target) => {
    const el = find(target);
    if (!el) return missing(target);
    const r = el.getBoundingClientRect(), [dx, dy] = offset(el);
    return [Math.round(r.x + dx), Math.round(r.y + dy), Math.round(r.width), Math.round(r.height)];
  };
  const changed = (el) => {
    el.dispatchEvent(new InputEvent('input', { bubbles: true, composed: true }));
    el.dispatchEvent(new Event('change', { bubbles: true }));
  };
  const TYPED = new Set(['date', 'time', 'datetime-local', 'month', 'week', 'color', 'range']);
  // Makes a field ready to be typed into, its old text selected; sets the value itself where nothing can be typed.
  const focus = (target, value, select) => {
    const el = find(target);
    if (!el) return missing(target);
    const text = el.tagName === 'TEXTAREA' || el.isContentEditable ||
      (el.tagName === 'INPUT' && !['checkbox', 'radio', 'button', 'submit', 'reset', 'image', 'file'].includes(el.type));
    if (!text) return { error: `element [${idOf(el)}] cannot be filled in: it is a ${roleOf(el) || el.tagName.toLowerCase()}` };
    if (el.disabled || el.readOnly) return { error: `element [${idOf(el)}] is ${el.disabled ? 'disabled' : 'read-only'}` };
    if (!inView(el)) el.scrollIntoView({ block: 'center', behavior: 'instant' });
    el.focus();
    if (value !== null && el.tagName === 'INPUT' && TYPED.has(el.type)) {
      el.value = value;
      if (el.value !== value && el.type !== 'color') return { error: `${JSON.stringify(value)} is not a valid value for a ${el.type} field` };
      changed(el);
      return { set: true };
    }
    if (select) el.isContentEditable ? document.getSelection().selectAllChildren(el) : el.select();
    return { set: false };
  };
  const choose = (target, wanted) => {
    const el = find(target);
    if (!el) return missing(target);
    if (el.tagName !== 'SELECT') return { error: `element [${idOf(el)}] is not a list to select from` };
    const options = [...el.options];
    const chosen = options.filter((o) => wanted.includes(squash(o.textContent)) || wanted.includes(o.value));
    const lacking = wanted.filter((w) => !options.some((o) => squash(o.textContent) === w || o.value === w));
    if (lacking.length) return { error: `there is no option ${JSON.stringify(lacking[0])}; the options are ${
      options.slice(0, settings.maxOptions).map((o) => squash(o.textContent)).join(', ')}` };
    if (!el.multiple && chosen.length > 1) return { error: `only one of the options can be selected` };
    el.focus();
    for (const o of options) o.selected = chosen.includes(o);
    changed(el);
    return {};
  };
  const scroll = (target, dx, dy) => {
    let el = target === null ? document.scrollingElement : find(target);
    if (!el) return missing(target);
    if (target !== null) {
      while (el && el.scrollHeight <= el.clientHeight && el.scrollWidth <= el.clientWidth) el = el.parentElement;
      el = el || document.scrollingElement;
    }
    el.scrollBy({ left: dx, top: dy, behavior: 'instant' });
    el.dispatchEvent(new Event('scroll'));
    return {};
  };
  const element = (target) => find(target);
  // Selects the text of an element, or a part of it.
  const highlight = (target, part) => {
    const el = find(target);
    if (!el) return missing(target);
    const view = el.ownerDocument, range = view.createRange();
    range.selectNodeContents(el);
    if (part !== null) {
      const walker = view.createTreeWalker(el, NodeFilter.SHOW_TEXT);
      let node = null, at = -1;
      while ((node = walker.nextNode()) && (at = node.nodeValue.indexOf(part)) < 0);
      if (!node) return { error: `element [${idOf(el)}] has no text ${JSON.stringify(part)}` };
      range.setStart(node, at); range.setEnd(node, at + part.length);
    }
    const selection = view.getSelection();
    selection.removeAllRanges(); selection.addRange(range);
    view.dispatchEvent(new Event('selectionchange'));
    el.dispatchEvent(new MouseEvent('mouseup', { bubbles: true }));
    return {};
  };
  // The value of an expression of a task file, as text; empty where it fails, which is how WebArena reads it.
  const read = (expression) => {
    try { const value = (0, eval)(expression); return value == null ? '' : String(value); } catch (error) { return ''; }
  };
  return { settled, locate, drag, box, focus, choose, scroll, element, highlight, read };
})
