'use strict';
// The page of tw-serve: asks the server every two seconds what is going on, and draws it.
const $ = id => document.getElementById(id);
// Where the page is, without a key that may stand in its address.
const base = location.origin + location.pathname.replace(/[^/]*$/, '');
let chosen = null, chats = [], busy = false;

const big = n => n >= 1e9 ? (n / 1e9).toFixed(1) + 'G' : n >= 1e6 ? (n / 1e6).toFixed(1) + 'M'
    : n >= 1e4 ? (n / 1e3).toFixed(1) + 'k' : String(n);
const bytes = n => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(1) + ' GiB' : n >= 2 ** 20 ? (n / 2 ** 20).toFixed(0) + ' MiB'
    : Math.round(n / 1024) + ' KiB';
const ago = t => {
    const s = Math.max(0, Date.now() / 1000 - t);
    return s < 60 ? Math.round(s) + ' s ago' : s < 3600 ? Math.round(s / 60) + ' min ago'
        : s < 86400 ? Math.round(s / 3600) + ' h ago' : Math.round(s / 86400) + ' d ago';
};
const lasts = s => s < 120 ? Math.round(s) + ' s' : s < 7200 ? Math.round(s / 60) + ' min'
    : s < 172800 ? Math.round(s / 3600) + ' h' : Math.round(s / 86400) + ' d';
const num = v => v === null || v === undefined ? '' : Math.abs(v) >= 1000 || (v && Math.abs(v) < 1e-3)
    ? v.toExponential(2) : v.toFixed(4);

async function get(path) {
    const r = await fetch(base + path, { headers: { Accept: 'application/json' } });
    if (!r.ok)
        throw new Error((await r.json().catch(() => ({}))).detail || r.statusText);
    return r.json();
}

function cells(row, list) {
    for (const [text, cls] of list) {
        const td = row.insertCell();
        if (text instanceof Node)
            td.append(text);
        else
            td.textContent = text;
        if (cls)
            td.className = cls;
    }
}

function drawNow(s) {
    const share = t => s.uptime > 0 ? Math.min(100, 100 * t / s.uptime).toFixed(0) + ' %' : '';
    const tiles = [['Queued', s.queued], ['Decoding', s.running], ['Waiting clients', s.parked],
        ['Adapters in memory', s.resident], ['Swapped out', s.swapped], ['Frozen samplers', s.snapshots],
        ['Memory', bytes(s.memory)], ['Steps', big(s.steps)], ['Tokens trained', big(s.tokens_trained)],
        ['Tokens sampled', big(s.tokens_sampled)], ['Busy training', share(s.busy_train)],
        ['Busy sampling', share(s.busy_sample)]];
    $('now').replaceChildren(...tiles.map(([k, v]) => {
        const box = document.createElement('div'), dt = document.createElement('dt'), dd = document.createElement('dd');
        dt.textContent = k;
        dd.textContent = v;
        box.append(dt, dd);
        return box;
    }));
    $('model').textContent = `${s.model}: ${s.family}, ${big(s.parameters)} parameters, window ${s.window}`;
    $('state').textContent = `up ${lasts(s.uptime)}`;
    $('state').className = '';
}

function drawRuns(runs) {
    const body = document.createElement('tbody');
    for (const r of runs) {
        const row = body.insertRow(), name = document.createElement('button');
        name.textContent = r.name ? `${r.name} ${r.id.slice(0, 8)}${r.id.slice(36)}` : r.id.slice(0, 8) + r.id.slice(36);
        name.title = r.id;
        name.onclick = () => { chosen = r.id; tick(); };
        row.className = r.id === chosen ? 'on' : '';
        cells(row, [[name], [r.tenant], [r.state], [r.rank || 'all', 'n'], [r.step, 'n'], [num(r.loss), 'n'],
            [ago(r.used)]]);
    }
    $('runs').tBodies[0].replaceWith(body);
    $('runs').hidden = !runs.length;
    $('no-runs').hidden = !!runs.length;
}

function drawTenants(list) {
    const body = document.createElement('tbody');
    for (const t of list)
        cells(body.insertRow(), [[t.name], [t.adapters, 'n'], [t.unfinished, 'n'], [big(t.tokens), 'n'],
            [big(t.requests), 'n'], [bytes(t.disk), 'n']]);
    $('tenants').tBodies[0].replaceWith(body);
}

function figure(name, points) {
    const NS = 'http://www.w3.org/2000/svg', W = 300, H = 120;
    const fig = document.createElement('figure'), cap = document.createElement('figcaption');
    const svg = document.createElementNS(NS, 'svg'), path = document.createElementNS(NS, 'path');
    const xs = points.map(p => p[0]), ys = points.map(p => p[1]);
    const x0 = Math.min(...xs), x1 = Math.max(...xs), y0 = Math.min(...ys), y1 = Math.max(...ys);
    const at = p => `${(x1 > x0 ? (p[0] - x0) / (x1 - x0) : 0.5) * W},${H - (y1 > y0 ? (p[1] - y0) / (y1 - y0) : 0.5) * (H - 8) - 4}`;
    const last = points[points.length - 1];
    cap.append(Object.assign(document.createElement('span'), { textContent: name }),
        Object.assign(document.createElement('span'), { textContent: `step ${last[0]}: ${num(last[1])}   (${num(y0)} to ${num(y1)})` }));
    svg.setAttribute('viewBox', `0 0 ${W} ${H}`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('role', 'img');
    svg.setAttribute('aria-label', `${name}, ${points.length} points, last ${num(last[1])}`);
    path.classList.toggle('one', points.length === 1);      // a point is a dot
    path.setAttribute('d', 'M' + (points.length > 1 ? points : [points[0], points[0]]).map(at).join('L'));
    svg.append(path);
    fig.append(cap, svg);
    return fig;
}

async function drawCurves() {
    $('curves-of').hidden = !chosen;
    if (!chosen)
        return;
    const all = await get(`api/v1/runs/${chosen}/points`), names = Object.keys(all);
    const first = ['loss', 'reward'];
    names.sort((a, b) => (first.indexOf(a) + 1 || 9) - (first.indexOf(b) + 1 || 9) || (a < b ? -1 : 1));
    $('curves-run').textContent = chosen;
    $('curves').replaceChildren(...names.map(n => figure(n, all[n])));
    if (!names.length)
        $('curves').textContent = 'No step yet.';
}

async function drawModels() {
    const list = (await get('v1/models')).data, old = $('with').value;
    $('with').replaceChildren(...list.map(m => {
        const o = document.createElement('option');
        o.value = m.id;
        o.textContent = m.id.startsWith('tinker://') ? m.id.slice(9, 17) + m.id.slice(45) : m.id;
        return o;
    }));
    if (list.some(m => m.id === old))
        $('with').value = old;
}

async function tick() {
    try {
        const o = await get('api/v1/overview');
        if (!chosen && o.runs.length)
            chosen = o.runs[0].id;
        drawNow(o.server);
        drawRuns(o.runs);
        drawTenants(o.tenants);
        await drawCurves();
        if (document.activeElement !== $('with'))
            await drawModels();
    } catch (e) {
        $('state').textContent = 'no answer: ' + e.message;
        $('state').className = 'bad';
    }
}

function bubble(cls, text) {
    const p = document.createElement('p');
    p.className = cls;
    p.textContent = text;
    $('talk').append(p);
    p.scrollIntoView({ block: 'nearest' });
    return p;
}

async function answer() {
    const r = await fetch(base + 'v1/chat/completions', { method: 'POST', headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ model: $('with').value, messages: chats, stream: true,
            temperature: Number($('temperature').value), max_tokens: Number($('tokens').value) }) });
    if (!r.ok) {
        const e = await r.json().catch(() => ({}));
        throw new Error(e.error ? e.error.message : e.detail || r.statusText);
    }
    const reader = r.body.getReader(), dec = new TextDecoder();
    let rest = '', text = '', out = null, thought = null;
    for (;;) {
        const { done, value } = await reader.read();
        if (done)
            break;
        rest += dec.decode(value, { stream: true });
        const lines = rest.split('\n\n');
        rest = lines.pop();
        for (const line of lines) {
            if (!line.startsWith('data: ') || line === 'data: [DONE]')
                continue;
            const x = JSON.parse(line.slice(6));
            if (x.error)
                throw new Error(x.error.message);
            const d = x.choices.length ? x.choices[0].delta : {};
            if (d.reasoning_content)
                (thought = thought || bubble('assistant thought', '')).textContent += d.reasoning_content;
            if (d.content)
                (out = out || bubble('assistant', '')).textContent = text += d.content;
        }
    }
    chats.push({ role: 'assistant', content: text });
    if (!out)
        bubble('assistant thought', '(nothing)');
}

$('ask').onsubmit = async e => {
    e.preventDefault();
    const text = $('say').value.trim();
    if (!text || busy)
        return;
    busy = $('send').disabled = true;
    $('say').value = '';
    chats.push({ role: 'user', content: text });
    bubble('user', text);
    try {
        await answer();
    } catch (x) {
        bubble('assistant failed', x.message);
        chats.pop();
    }
    busy = $('send').disabled = false;
    $('say').focus();
};
$('say').onkeydown = e => {
    if (e.key === 'Enter' && !e.shiftKey) {
        e.preventDefault();
        $('ask').requestSubmit();
    }
};
$('clear').onclick = () => {
    chats = [];
    $('talk').replaceChildren();
};
tick();
setInterval(tick, 2000);
