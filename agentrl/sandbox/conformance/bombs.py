"""Attack programs with a part for the owner: bombs, survivors, forgeries, thieves."""

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
        try: x = MADE
        except OSError:
            os.write(write, b'.')  # refused: nothing to hold
            os._exit(0)
        for i in range(0, len(x), 4096): x[i] = 1
        os.write(write, b'.')
        time.sleep(10)
        os._exit(0)
held = 0
while held < 8: held += len(os.read(read, 8))
time.sleep(1.5)
left = 0
while True:
    try: pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError: break
    if pid == 0:
        left = 1
        break
print('BREACH' if left else 'held')
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
BUFFERS_OF_MANY = """
import os, socket, time
read, write = os.pipe()
def hold():
    pairs, data = [], bytes(2**16)
    try:
        while True:
            pairs.append(socket.socketpair())
            for end in pairs[-1]:
                end.setblocking(False)
                try:
                    while True: end.send(data)
                except BlockingIOError: pass
    except OSError: pass
    return pairs
for _ in range(12):
    if os.fork() == 0:
        kept = hold()
        os.write(write, b'.')
        time.sleep(15)
        os._exit(0)
held = 0
while held < 12: held += len(os.read(read, 12))
time.sleep(1.5)
print('BREACH')
"""
PRIVATE_MEMORY = "bytearray(48 * 2**20)"
SHARED_MEMORY = "mmap.mmap(-1, 48 * 2**20)"

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

SWAPPER = """
import ctypes, os, tempfile, time
end = time.monotonic() + 20
exchange = getattr(ctypes.CDLL(None), 'renameat2', None)
def swap(place):
    folder, link = (f'{place}/{name}'.encode() for name in ('d', 'l'))
    while exchange is not None and time.monotonic() < end:
        for make in (lambda: os.mkdir(folder), lambda: os.symlink(OUTSIDE, link)):
            try: make()
            except OSError: pass
        for _ in range(1000): exchange(-100, folder, -100, link, 2)  # RENAME_EXCHANGE
for place in ('.', tempfile.gettempdir()) * 3:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: swap(place)
        os._exit(0)
time.sleep(20)
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
own = ('.', '..', tempfile.gettempdir())
for folder in (*own, '/tmp', '/var/tmp', '/dev/shm', '/run', '/run/lock'):
    try: found = [entry for entry in os.listdir(folder) if name in entry]
    except OSError: continue
    if found: print('BREACH', folder, found)
    for trace in (name, '.' + name):
        if os.path.exists(os.path.join(folder, trace)): print('BREACH', folder)
"""

# what a process made and unmapped again, save for a page of it, while the rest stays
_HOARD = """
import ctypes, mmap, os, resource, time
LIMIT = 192 * 2**20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.memset.argtypes = libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def mapped(size, flags, fd=-1, protection=3):
    at = libc.mmap(None, size, protection, flags, fd, 0)
    if at in (None, ctypes.c_void_p(-1).value): raise OSError(ctypes.get_errno(), "mmap")
    return at
held = 0
try:
    while held < LIMIT: held += more()
except OSError as error:
    print(error)
if held >= LIMIT: time.sleep(1.5)
print('BREACH' if held >= LIMIT else 'held', held)
"""
SHARED_HOARD = (
    """
def more():
    size = 2**24
    at = mapped(size, 0x21)  # MAP_SHARED | MAP_ANONYMOUS
    libc.memset(at, 1, size)
    libc.munmap(at + 4096, size - 4096)
    return size
"""
    + _HOARD
)
ZERO_HOARD = (
    """
def more():
    size = 2**24
    fd = os.open('/dev/zero', os.O_RDONLY)
    at = mapped(size, 0x01, fd, 1)  # MAP_SHARED, PROT_READ
    os.close(fd)
    libc.memchr(at, 1, size)
    libc.munmap(at + 4096, size - 4096)
    return size
"""
    + _HOARD
)
PIPE_HOARD = (
    """
pipes = []
def more():
    huge = 2**21
    at = mapped(2 * huge, 0x22)  # MAP_PRIVATE | MAP_ANONYMOUS
    start = -at % huge + at
    libc.madvise(start, huge, 14)  # MADV_HUGEPAGE
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    libc.memset(start, 1, huge)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    if len(pipes) % 17 == 0: pipes.append(os.pipe())
    page = (ctypes.c_size_t * 2)(start, 4096)
    number = 278 if os.uname().machine == 'x86_64' else 75  # vmsplice
    if libc.syscall(ctypes.c_long(number), pipes[-1][1], page, ctypes.c_size_t(1), 1) != 4096:
        raise OSError(ctypes.get_errno(), 'vmsplice')
    pipes.append(pipes[-1])
    libc.munmap(at, 2 * huge)
    if faults > 100: raise OSError(0, 'no huge pages here')  # a small page keeps nothing but itself
    return huge
"""
    + _HOARD
)

HEAR = """
import socket, sys
name = chr(0) + sys.stdin.read()
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
    try:
        if kind == socket.SOCK_DGRAM: ear = socket.socketpair(socket.AF_UNIX, kind)[0]
        else: ear = socket.socket(socket.AF_UNIX)
        ear.bind(name if kind == socket.SOCK_DGRAM else name + '-stream')
        ear.settimeout(3)
        if kind == socket.SOCK_STREAM: ear.listen()
        heard = ear.recv(9) if kind == socket.SOCK_DGRAM else ear.accept()
    except OSError: continue
    print('BREACH', heard)
"""

SAY = """
import socket, sys, time
name = chr(0) + sys.stdin.read()
end = time.monotonic() + 1
while time.monotonic() < end:
    for say in (lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', name),
                lambda: socket.socket(socket.AF_UNIX).connect(name + '-stream')):
        try: say()
        except OSError: continue
    time.sleep(0.05)
"""
