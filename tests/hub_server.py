#!/usr/bin/env python3
"""A hub on loopback for the tests of tw-fetch; Python's standard library only.

    hub_server.py ROOT

ROOT/hf/models/ORG/NAME/FILES.., ROOT/hf/datasets/.., ROOT/ms/models/.., ROOT/ms/datasets/.. are
repositories, ROOT/web/.. plain files. The ports of the hub and of a second server that only hands
out bytes (what a hub redirects large files to) are written to ROOT/port and ROOT/cdn. Each request
is a line of ROOT/log: time, server, method, path, status and the headers that matter.

ROOT/behave.json, read at each request, makes it misbehave:
    "cut": {"NAME": F}          closes the connection after the part F of a file
    "flip": {"NAME": N}         changes byte N of a file's body
    "status": {"TEXT": [CODE, {header: value}, TIMES]}   for paths that hold TEXT, TIMES (-1: always)
    "norange": true             ignores Range
    "noetag": true              sends no ETag
    "chunked": true             sends no Content-Length
    "nosizes": true             the answer for a revision has no sizes: the tree must be asked
    "token": "T"                answers 401 to those without it
    "slow": S                   a file takes S seconds, until this is taken back
    "hang": true                answers nothing
    "evil": "PATH"              lists a file of that name, too
    "elsewhere": true           links of pages name another host
    "readonly": true            refuses to write
    "multipart": N              takes large files in parts of N bytes
    "cutput": N                 loses the connection of the first N uploads in the middle

What is uploaded lands in the repositories' folders; large files by way of ROOT/lfs/SHA256, which the
second server takes. Each commit is a line of ROOT/commits.
"""
import base64
import hashlib
import json
import os
import ssl
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = os.path.abspath(sys.argv[1])
BIG = 100000        # files from here on are handed out by the second server, like LFS files
PAGE = 3            # entries of a page of the tree
lock = threading.Lock()
used = {}           # how often each "status" was given


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128    # a connection that must be tried again would arrive a second late


def behave():
    try:
        with open(os.path.join(ROOT, 'behave.json')) as f:
            return json.load(f)
    except (OSError, ValueError):
        return {}


def files_of(folder):
    found = []
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            found.append((os.path.relpath(path, folder), path))
    return sorted(found)


def data_of(path):
    with open(path, 'rb') as f:
        return f.read()


def commit_of(folder):
    h = hashlib.sha1()
    for name, path in files_of(folder):
        h.update(name.encode() + b'\0' + hashlib.sha256(data_of(path)).digest())
    return h.hexdigest()


def blob_of(data):
    return hashlib.sha1(b'blob %d\0' % len(data) + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
        pass

    def note(self, status):
        h = self.headers
        line = {'t': time.time(), 'server': self.server.kind, 'method': self.command,
                'path': self.path, 'status': status, 'range': h.get('Range'),
                'if_range': h.get('If-Range'), 'auth': h.get('Authorization'),
                'cookie': h.get('Cookie'), 'agent': h.get('User-Agent')}
        with lock, open(os.path.join(ROOT, 'log'), 'a') as f:
            f.write(json.dumps(line) + '\n')

    def answer(self, status, body=b'', headers=None, kind='application/json'):
        self.note(status)
        self.send_response(status)
        for k, v in (headers or {}).items():
            self.send_header(k, v)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def give(self, value, headers=None):
        self.answer(200, json.dumps(value).encode(), headers)

    def missing(self, code):
        self.answer(404, b'{"error":"not found"}', {'X-Error-Code': code})

    # one file, with ranges
    def send_file(self, path, headers=None):
        b, name = behave(), os.path.basename(path)
        data = data_of(path)
        etag = '"%s"' % hashlib.sha256(data).hexdigest()
        if name in b.get('flip', {}):
            at = b['flip'][name]
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]
        start, status = 0, 200
        want = self.headers.get('Range')
        if want and not b.get('norange') and self.headers.get('If-Range') in (None, etag):
            start, status = int(want.split('=')[1].split('-')[0]), 206
            if start >= len(data):
                return self.answer(416, b'', {'Content-Range': 'bytes */%d' % len(data)})
        body = data[start:]
        self.note(status)
        self.send_response(status)
        for k, v in (headers or {}).items():
            self.send_header(k, v)
        if status == 206:
            self.send_header('Content-Range', 'bytes %d-%d/%d' % (start, len(data) - 1, len(data)))
        if not b.get('noetag'):
            self.send_header('ETag', etag)
        if b.get('chunked'):
            self.send_header('Connection', 'close')
            self.close_connection = True
        else:
            self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command == 'HEAD':
            return None
        cut = b.get('cut', {}).get(name)
        end = int(len(data) * cut) - start if cut is not None else len(body)
        step = max(1, len(body) // 20)
        for at in range(0, max(0, end), step):
            self.wfile.write(body[at:min(at + step, end)])
            self.wfile.flush()
            until = time.time() + b.get('slow', 0) / 20
            while time.time() < until and behave().get('slow'):
                time.sleep(min(0.05, b['slow'] / 20))
        if cut is not None:
            self.close_connection = True
        return None

    # uploads
    def body(self):
        return self.rfile.read(int(self.headers.get('Content-Length') or 0))

    def do_PUT(self):
        b = behave()
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if self.server.kind != 'cdn' or not path.startswith('/lfs/'):
            self.body()
            return self.answer(404, b'{"error":"no such place"}')
        with lock:
            used['put'] = used.get('put', 0) + 1
            cut = used['put'] <= b.get('cutput', 0)
        if cut:
            self.rfile.read(int(self.headers['Content-Length']) // 2)
            self.note(0)
            self.close_connection = True
            return None
        data = self.body()
        os.makedirs(os.path.join(ROOT, 'lfs'), exist_ok=True)
        with open(os.path.join(ROOT, path[1:]), 'wb') as f:
            f.write(data)
        return self.answer(200, b'', {'ETag': '"%s"' % hashlib.md5(data).hexdigest()})

    def do_POST(self):
        b = behave()
        raw = self.body()
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        for text, (code, headers, times) in b.get('status', {}).items():
            if text in self.path:
                with lock:
                    used[text] = used.get(text, 0) + 1
                    mine = times < 0 or used[text] <= times
                if mine:
                    said = ('as told, ' + (self.headers.get('Authorization') or '')).encode()
                    return self.answer(code, b'{"error":"%s"}' % said, headers)
        if b.get('token') and self.headers.get('Authorization') != 'Bearer ' + b['token']:
            return self.answer(401, b'{"error":"who?"}')
        if b.get('readonly'):
            return self.answer(403, b'{"error":"only to be read","Message":"only to be read","Success":false}')
        if path.startswith('/api/v1/'):
            return self.push_ms(path[8:].split('/'), json.loads(raw))
        return self.push_hf(path.strip('/').split('/'), raw)

    def commit(self, folder, line, files):
        """FILES: (path, content, SHA256 of a large one)."""
        with lock, open(os.path.join(ROOT, 'commits'), 'a') as f:
            f.write(json.dumps(dict(line, repo=os.path.relpath(folder, ROOT), paths=[p for p, _, _ in files])) + '\n')
        for path, data, oid in files:
            if oid:
                data = data_of(os.path.join(ROOT, 'lfs', oid))
                assert hashlib.sha256(data).hexdigest() == oid
            full = os.path.join(folder, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, 'wb') as f:
                f.write(data)

    def push_hf(self, p, raw):
        if p == ['api', 'repos', 'create']:
            j = json.loads(raw)
            assert j['type'] == 'model'
            folder = os.path.join(ROOT, 'hf', 'models', j['organization'], j['name'])
            if os.path.isdir(folder):
                return self.answer(409, b'{"error":"You already created this model repo"}')
            os.makedirs(folder)
            with open(os.path.join(ROOT, 'private'), 'w') as f:
                f.write(json.dumps(j['private']))
            return self.give({'url': self.server.hub})
        if p[0] == 'lfs':                                   # joins the parts, verifies
            j = json.loads(raw)
            full = os.path.join(ROOT, 'lfs', j['oid'])
            if p[1] == 'join':
                data = b''
                for n, part in enumerate(j['parts']):
                    piece = data_of('%s.%d' % (full, n + 1))
                    assert part == {'partNumber': n + 1, 'etag': '"%s"' % hashlib.md5(piece).hexdigest()}
                    data += piece
                with open(full, 'wb') as f:
                    f.write(data)
            data = data_of(full)
            assert hashlib.sha256(data).hexdigest() == j['oid']
            return self.give({'ok': len(data) == j.get('size', len(data))})
        if p[-3:] == ['lfs', 'objects', 'batch']:
            j = json.loads(raw)
            assert j['operation'] == 'upload' and j['hash_algo'] == 'sha256' and j['ref'] == {'name': 'main'}
            return self.give({'transfer': 'basic', 'objects': [self.lfs_object(o) for o in j['objects']]})
        folder = os.path.join(ROOT, 'hf', 'models', p[2], p[3])
        if not os.path.isdir(folder):
            return self.missing('RepoNotFound')
        if p[5:] != ['main']:
            return self.missing('RevisionNotFound')
        if p[4] == 'preupload':
            files = json.loads(raw)['files']
            assert all(len(base64.b64decode(f['sample'])) == min(512, f['size']) for f in files)
            return self.give({'files': [{'path': f['path'], 'shouldIgnore': f['path'].endswith('.log'),
                                         'uploadMode': 'lfs' if f['size'] >= BIG else 'regular'} for f in files]})
        lines = [json.loads(x) for x in raw.splitlines()]
        assert lines[0]['key'] == 'header' and self.headers['Content-Type'] == 'application/x-ndjson'
        files = []
        for x in lines[1:]:
            v = x['value']
            if x['key'] == 'lfsFile':
                assert v['algo'] == 'sha256'
                files.append((v['path'], None, v['oid']))
            else:
                files.append((v['path'], base64.b64decode(v['content']), None))
        self.commit(folder, lines[0]['value'], files)
        return self.give({'commitOid': commit_of(folder)})

    def lfs_object(self, o):
        if os.path.exists(os.path.join(ROOT, 'lfs', o['oid'])):
            return o
        part = behave().get('multipart')
        up = {'href': '%s/lfs/%s?signature=secret' % (self.server.cdn, o['oid'])}
        if part:
            up = {'href': 'https://huggingface.co/lfs/join', 'header': {'chunk_size': str(part)}}
            for n in range((o['size'] + part - 1) // part):
                up['header']['%05d' % (n + 1)] = '%s/lfs/%s.%d?signature=secret' % (
                    self.server.cdn, o['oid'], n + 1)
        return dict(o, actions={'upload': up, 'verify': {'href': 'https://huggingface.co/lfs/verify'}})

    def push_ms(self, p, j):
        fine = {'Code': 200, 'Success': True, 'Message': 'success'}
        if p == ['models']:
            folder = os.path.join(ROOT, 'ms', 'models', j['Path'], j['Name'])
            if os.path.isdir(folder):
                return self.give({'Code': 10020101001, 'Success': False, 'Message': 'the model already exists'})
            os.makedirs(folder)
            with open(os.path.join(ROOT, 'private'), 'w') as f:
                f.write(json.dumps(j['Visibility'] == 1))
            return self.give(fine)
        assert p[:2] == ['repos', 'models']
        folder = os.path.join(ROOT, 'ms', 'models', p[2], p[3])
        if not os.path.isdir(folder):
            return self.answer(404, b'{"Code":404,"Message":"record not found","Success":false}')
        if p[4] == 'info':
            want = [o for o in j['objects'] if not os.path.exists(os.path.join(ROOT, 'lfs', o['oid']))]
            return self.give(dict(fine, Data={'objects': [dict(o, actions={'upload': {
                'href': '%s/lfs/%s?signature=secret' % (self.server.cdn, o['oid'])}}) for o in want]}))
        assert p[4:] == ['commit', 'master'], p
        files = []
        for a in j['actions']:
            assert a['action'] == ('update' if os.path.exists(os.path.join(folder, a['path'])) else 'create'), a
            if a['type'] == 'lfs':
                assert a['encoding'] == a['content'] == ''
                files.append((a['path'], None, a['sha256']))
            else:
                assert a['encoding'] == 'base64' and a['size'] == len(base64.b64decode(a['content']))
                files.append((a['path'], base64.b64decode(a['content']), None))
        self.commit(folder, {'summary': j['commit_message']}, files)
        return self.give(fine)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        b = behave()
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if b.get('hang'):
            self.note(0)
            time.sleep(30)
            return None
        for text, (code, headers, times) in b.get('status', {}).items():
            if text in self.path:
                with lock:
                    used[text] = used.get(text, 0) + 1
                    mine = times < 0 or used[text] <= times
                if mine:
                    return self.answer(code, b'{"error":"as told"}', headers)
        if self.server.kind == 'cdn':
            return self.send_file(os.path.join(ROOT, path.lstrip('/')))
        if path.startswith('/web/'):
            full = os.path.join(ROOT, path.lstrip('/'))
            return self.send_file(full) if os.path.isfile(full) else self.answer(404)
        if path.startswith('/jump/'):
            return self.answer(302, b'', {'Location': '%s/web/%s' % (self.server.cdn, path[6:])})
        if b.get('token') and self.headers.get('Authorization') != 'Bearer ' + b['token']:
            return self.answer(401, b'{"error":"who?"}')
        if path.startswith('/api/v1/'):
            return self.modelscope(path[8:].split('/'), query)
        return self.hugging_face(path.strip('/').split('/'))

    def hugging_face(self, p):
        b = behave()
        if p[0] == 'api' and len(p) >= 6:
            kind, org, name, verb, rev = p[1], p[2], p[3], p[4], '/'.join(p[5:])
            folder = os.path.join(ROOT, 'hf', kind, org, name)
            if not os.path.isdir(folder):
                return self.missing('RepoNotFound')
            commit = commit_of(folder)
            if rev not in ('main', commit):
                return self.missing('RevisionNotFound')
            if verb == 'revision':
                return self.give({'id': org + '/' + name, 'sha': commit,
                                  'siblings': self.siblings(folder, b)})
            if verb == 'tree':
                return self.tree(folder, b)
        if 'resolve' in p:
            at = p.index('resolve')
            kind = 'datasets' if p[0] == 'datasets' else 'models'
            folder = os.path.join(ROOT, 'hf', kind, *p[at - 2:at])
            path = os.path.join(folder, *p[at + 2:])
            if not os.path.isfile(path):
                return self.missing('EntryNotFound')
            headers = {'X-Repo-Commit': commit_of(folder)}
            data = data_of(path)
            if len(data) < BIG:
                return self.send_file(path, headers)
            headers['X-Linked-Size'] = str(len(data))
            headers['X-Linked-Etag'] = '"%s"' % hashlib.sha256(data).hexdigest()
            headers['Location'] = '%s/%s?signature=secret' % (
                self.server.cdn, urllib.parse.quote(os.path.relpath(path, ROOT)))
            return self.answer(302, b'', headers)
        return self.missing('RepoNotFound')

    def entry(self, name, path):
        data = data_of(path)
        e = {'size': len(data), 'oid': blob_of(data)}
        if len(data) >= BIG:
            e['lfs'] = {'sha256': hashlib.sha256(data).hexdigest(), 'size': len(data),
                        'pointerSize': 134}
            e['oid'] = blob_of(b'pointer')
        return e

    def siblings(self, folder, b):
        out = []
        for name, path in files_of(folder):
            e = self.entry(name, path)
            if b.get('nosizes'):
                out.append({'rfilename': name})
            else:
                out.append({'rfilename': name, 'size': e['size'], 'blobId': e['oid'],
                            **({'lfs': e['lfs']} if 'lfs' in e else {})})
        if b.get('evil'):
            out.append({'rfilename': b['evil'], 'size': 1, 'blobId': blob_of(b'x')})
        return out

    def tree(self, folder, b):
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        at = int(query.get('cursor', '0'))
        out = [{'type': 'directory', 'path': 'folder', 'oid': '0' * 40, 'size': 0}]
        files = files_of(folder)
        for name, path in files[at:at + PAGE]:
            e = self.entry(name, path)
            if 'lfs' in e:
                e['lfs'] = {'oid': e['lfs']['sha256'], 'size': e['size'], 'pointerSize': 134}
            out.append({'type': 'file', 'path': name, **e})
        headers = {}
        if at + PAGE < len(files):
            base = 'https://elsewhere.invalid' if b.get('elsewhere') else self.server.hub
            headers['Link'] = '<%s%s?recursive=true&cursor=%d>; rel="next"' % (
                base, urllib.parse.urlsplit(self.path).path, at + PAGE)
        return self.give(out, headers)

    def modelscope(self, p, query):
        kind, org, name, verb = p[0], p[1], p[2], '/'.join(p[3:])
        folder = os.path.join(ROOT, 'ms', kind, org, name)
        if not os.path.isdir(folder):
            return self.answer(404, b'{"Code":10010205001,"Message":"record not found",'
                                    b'"Success":false}')
        if query.get('Revision') not in ('master', 'v1'):
            return self.answer(404, b'{"Code":10010205002,"Message":"no revision",'
                                    b'"Success":false}')
        if verb in ('repo/files', 'repo/tree'):
            out = [{'Name': 'data', 'Path': 'data', 'Type': 'tree', 'Size': 0, 'Sha256': ''}]
            for rel, path in files_of(folder):
                data = data_of(path)
                out.append({'Name': os.path.basename(rel), 'Path': rel, 'Type': 'blob',
                            'Size': len(data), 'Sha256': hashlib.sha256(data).hexdigest(),
                            'Revision': '1' * 40})
            if 'PageNumber' in query:
                size = int(query['PageSize'])
                at = (int(query['PageNumber']) - 1) * size
                out = out[at:at + size]
            return self.give({'Code': 200, 'Success': True, 'Message': '', 'Data': {'Files': out}})
        if verb == 'repo':
            path = os.path.join(folder, query.get('FilePath', ''))
            if os.path.isfile(path):
                return self.send_file(path)
        return self.answer(404, b'{"Code":404,"Message":"no such file","Success":false}')


def main():
    servers = []
    for kind in ('hub', 'cdn'):
        s = Server(('127.0.0.1', 0), Handler)
        s.kind = kind
        servers.append(s)
    hub, cdn = ('http://127.0.0.1:%d' % s.server_address[1] for s in servers)
    for s, name, url in zip(servers, ('port', 'cdn'), (hub, cdn)):
        s.hub, s.cdn = hub, cdn
        threading.Thread(target=s.serve_forever, daemon=True).start()
        with open(os.path.join(ROOT, name + '.tmp'), 'w') as f:
            f.write(url + '\n')
    cert = os.path.join(ROOT, 'cert.pem')       # with its key: the hub over TLS as well
    if os.path.exists(cert):
        s = Server(('127.0.0.1', 0), Handler)
        s.kind, s.hub, s.cdn = 'tls', hub, cdn
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert)
        s.socket = context.wrap_socket(s.socket, server_side=True)
        threading.Thread(target=s.serve_forever, daemon=True).start()
        with open(os.path.join(ROOT, 'tls'), 'w') as f:
            f.write('https://127.0.0.1:%d\n' % s.server_address[1])
    for name in ('cdn', 'port'):
        os.rename(os.path.join(ROOT, name + '.tmp'), os.path.join(ROOT, name))
    # Ends with the script that started it, also when that is killed.
    while os.getppid() != 1 and os.path.isdir(ROOT):
        time.sleep(0.2)


main()
