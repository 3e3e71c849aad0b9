"""A bad line to a tw-serve, for tests of clients: python3 serve_flaky.py URL prints its own address.

Of every seven requests one is never passed on, one is answered with 503 though it was done, one's answer is lost, and one is
told to come back later.
"""
import http.client, http.server, socketserver, sys, urllib.parse

there = urllib.parse.urlsplit(sys.argv[1]).netloc
count = 0


class Line(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def answer(self, status, headers, body):
        self.send_response(status)
        for k, v in headers:
            if k.lower() not in ("connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(k, v)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def pass_on(self):
        global count
        count += 1
        what = count % 7
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if what == 1:
            self.close_connection = True
            return
        if what == 3:
            self.answer(429, [("Retry-After", "0.01")], b'{"detail": "later"}')
            return
        c = http.client.HTTPConnection(there, timeout=100)
        c.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k.lower() != "connection"})
        r = c.getresponse()
        got = r.read()
        c.close()
        if what == 5:
            self.answer(503, [], b'{"detail": "somewhere on the way"}')
        elif what == 6:
            self.close_connection = True
        else:
            self.answer(r.status, r.getheaders(), got)

    do_GET = do_POST = do_PUT = do_DELETE = pass_on


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


s = Server(("127.0.0.1", 0), Line)
print("http://127.0.0.1:%d" % s.server_port, flush=True)
s.serve_forever()
