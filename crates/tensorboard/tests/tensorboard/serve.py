"""Serves a folder of runs with the real TensorBoard and prints what its HTTP endpoints answer, as JSON.

The first argument is the folder, the others are the paths to ask for. What stands behind a space is posted. Of pictures
and sounds, the newest is asked for by its key in the list.
"""
import json
import sys
import time
import urllib.error
import urllib.request

from tensorboard import program

folder, *paths = sys.argv[1:]
server = program.TensorBoard()
server.configure(argv=[None, "--logdir", folder, "--host", "127.0.0.1", "--port", "0", "--load_fast", "false",
                       "--reload_interval", "1"])
url = server.launch().rstrip("/")


def ask(path):
    path, _, body = path.partition(" ")
    request = urllib.request.Request(url + path, body.encode() or None, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            kind, body = answer.headers.get_content_type(), answer.read()
    except urllib.error.HTTPError as e:
        return {"status": e.code, "body": e.read().decode(errors="replace")}
    text = kind.startswith("text/") or kind == "application/json"
    return {"status": 200, "kind": kind, "body": body.decode() if text else list(body)}


# Runs are loaded behind the first answers.
end = time.time() + 60
answers = [ask(path) for path in paths]
while any(a["status"] == 404 or a["body"] in ("{}", "[]") for a in answers) and time.time() < end:
    time.sleep(0.2)
    answers = [ask(path) for path in paths]
for i, path in enumerate(paths):
    kind = path.partition("?")[0]
    if kind.endswith(("/images", "/audio")):
        one = kind.replace("/images/images", "/images/individualImage").replace("/audio/audio", "/audio/individualAudio")
        answers[i] = ask(f"{one}?{json.loads(answers[i]['body'])[-1]['query']}")
json.dump(answers, sys.stdout)
