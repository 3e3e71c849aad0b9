"""Drives headless Chromium over its DevTools pipe: see a page as somebody does, however slow the machine.

    with Browser(width, height, dark) as b:
        b.open(url)
        b.until("JavaScript that becomes true")   # asks until it holds, or fails with what is on the screen
        b.value("JavaScript")                     # what it evaluates to, promises awaited
        b.picture("file.png")

Chromium reads commands on descriptor 3 and answers on 4, each a JSON text ended by a NUL.
"""
import base64, fcntl, json, os, select, shutil, subprocess, tempfile, time

LIMIT = 240             # seconds for anything: it is a guard against hanging, not a measure


class Browser:
    def __init__(self, width, height, dark=False):
        self.dir = tempfile.mkdtemp(prefix="profile", dir=".")
        to_r, self.to = os.pipe()
        self.of, of_w = os.pipe()
        # Away from 3 and 4, which the shell makes of them: one must not be closed by the other.
        theirs = [fcntl.fcntl(d, fcntl.F_DUPFD, 64) for d in (to_r, of_w)]
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec chromium "$@" 3<&%d 4>&%d' % tuple(theirs), "sh",
             "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
             "--user-data-dir=" + os.path.abspath(self.dir), "about:blank"],
            pass_fds=theirs, stdin=subprocess.DEVNULL, stdout=open("chromium.err", "ab"), stderr=subprocess.STDOUT,
            env={**os.environ, "HOME": os.path.abspath(self.dir)})
        for d in [to_r, of_w] + theirs:
            os.close(d)
        self.rest, self.number, self.session, self.log = b"", 0, None, []
        page = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = page[0]["targetId"] if page else self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable"), self.call("Page.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def message(self, until):
        while b"\0" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.of], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.of, 1 << 20)
            if not more:
                raise EOFError("the browser has ended")
            self.rest += more
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **params):
        self.number += 1
        what = {"id": self.number, "method": method, "params": params}
        if self.session:
            what["sessionId"] = self.session
        os.write(self.to, json.dumps(what).encode() + b"\0")
        until = time.monotonic() + LIMIT
        while True:
            m = self.message(until)
            if m.get("id") == self.number:
                assert "error" not in m, (method, m["error"])
                return m["result"]
            if m.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.log.append(m["params"])

    def open(self, url):
        error = self.call("Page.navigate", url=url).get("errorText")
        assert not error, error

    def value(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r["exceptionDetails"]
        return r["result"].get("value")

    def until(self, expression):
        end = time.monotonic() + LIMIT
        while True:
            try:
                if self.value(expression):
                    return
            except AssertionError:      # the page is not there yet, or was just left
                pass
            if time.monotonic() > end:
                raise AssertionError("never: %s; on the screen:\n%s\n%s" % (
                    expression, self.value("document.body && document.body.innerText"), self.log))
            time.sleep(0.1)

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
