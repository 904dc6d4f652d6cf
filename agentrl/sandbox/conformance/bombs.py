"""The attacks in which the owner plays a part as well: bombs, survivors, forgeries, thieves."""

from __future__ import annotations

BEAT = """
import os, sys, time
def beat():
    for fd in range(0, 256):
        try: os.close(fd)
        except OSError: pass
    fd = os.open('beat', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(2000):
        os.write(fd, b'.'); time.sleep(0.01)
    os._exit(0)
def started():
    while not (os.path.exists('beat') and os.path.getsize('beat')): time.sleep(0.01)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        beat()
    os._exit(0)
started()
"""

LOOK_FOR_BEAT = """
import os, time
before = os.path.getsize('beat')
time.sleep(0.3)
print(before > 0, os.path.getsize('beat') - before)
"""

FORGERY = """
import json, os, struct
head = {'id': 1, 'op': 'cancel', 'target': 1, 'status': 'ok', 'exit_code': 0, 'sizes': []}
head = json.dumps(head).encode()
frame = struct.pack('!IQ', len(head), 0) + head
for fd in range(3, 1024):
    try: os.write(fd, frame)
    except OSError: pass
print('done')
raise SystemExit(9)
"""

FORK_BOMB = """
import os, time
made = 0
try:
    while made < 600:
        if os.fork() == 0:
            time.sleep(15)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made, flush=True)
time.sleep(1.5)
print('BREACH' if made > 16 else 'held')
"""

MEMORY_BOMB = """
import mmap, os, time
read, write = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        x = MADE
        for i in range(0, len(x), 4096): x[i] = 1
        os.write(write, b'.')
        time.sleep(10)
        os._exit(0)
held = 0
while held < 8: held += len(os.read(read, 8))
time.sleep(1.5)
print('BREACH')
"""
BUFFER_BOMB = """
import socket
held, pairs, data = 0, [], bytes(2**16)
try:
    while held < 2**27:
        pairs.append(socket.socketpair())
        for end in pairs[-1]:
            end.setblocking(False)
            try: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**24)
            except OSError: pass
            try:
                while held < 2**27: held += end.send(data)
            except BlockingIOError: pass
except OSError:
    pass
print('BREACH' if held >= 2**27 else 'held', held)
"""
PRIVATE_MEMORY, SHARED_MEMORY = "bytearray(48 * 2**20)", "mmap.mmap(-1, 48 * 2**20)"

DISK_FILL = """
import time
for n in range(16):
    with open(f'f{n}', 'wb') as file: file.write(b'x' * (4 * 2**20))
time.sleep(3)
print('BREACH')
"""

THEFT = """
import os
def tries():
    yield lambda: open(folder + '/secret').read()
    yield lambda: os.listdir(folder)
    yield lambda: open(folder + '/made', 'x')
    yield lambda: os.listdir(os.path.dirname(folder))
    yield lambda: os.listdir('../..')
    yield lambda: os.kill(pid, 0)
if os.path.exists('secret'): print('BREACH')
if os.getcwd() != folder:
    for attempt in tries():
        try: attempt()
        except OSError: continue
        print('BREACH')
"""

INODE_FILL = """
import os, time
made = 0
try:
    while made < 6000:
        os.makedirs(f'd{made // 500}', exist_ok=True)
        open(f'd{made // 500}/{made}', 'w').close()
        made += 1
except OSError:
    pass
print(made, flush=True)
time.sleep(3)
print('BREACH' if made > 2000 else 'held')
"""

GREED = """
import mmap
held = []
try:
    for _ in range(64):  # of 16 MB, each page written
        area = mmap.mmap(-1, 16 * 2**20)
        for at in range(0, len(area), 4096): area[at] = 1
        held.append(area)
except (MemoryError, OSError):
    pass
print('BREACH' if len(held) * 16 > 144 else 'held')
"""

LEAVE = """
import os, sys, tempfile
name = sys.stdin.read()
for folder in ('.', tempfile.gettempdir(), '/tmp', '/var/tmp', '/dev/shm', '/run', '/run/lock'):
    for trace in (name, '.' + name):
        try: open(os.path.join(folder, trace), 'x').close()
        except OSError: pass
try: os.mkfifo(os.path.join(tempfile.gettempdir(), 'pipe' + name))
except OSError: pass
"""

LOOK_FOR_TRACE = """
import os, sys, tempfile
name = sys.stdin.read()
for folder in ('.', '..', tempfile.gettempdir(), '/tmp', '/var/tmp', '/dev/shm', '/run', '/run/lock'):
    try: found = [entry for entry in os.listdir(folder) if name in entry]
    except OSError: continue
    if found: print('BREACH', folder, found)
    for trace in (name, '.' + name):
        if os.path.exists(os.path.join(folder, trace)): print('BREACH', folder)
"""
