"""Attack programs: each tries a way out, prints BREACH if it gets there, and DONE at the end."""

from __future__ import annotations

_PRELUDE = r"""
import ctypes, errno, glob, os, signal, socket, struct, sys, time
import json as _json
T = _json.loads(TARGET)
libc = ctypes.CDLL(None, use_errno=True)
PARENT = os.getppid() or T["owner"]  # 0 where the parent lives in another pid namespace

def attempt(name, action):
    try:
        action()
    except (OSError, MemoryError, ValueError):
        return
    print("BREACH", name, flush=True)

def syscall(name, x86_64, aarch64, *args):
    number = x86_64 if os.uname().machine == "x86_64" else aarch64
    ctypes.set_errno(0)
    done = libc.syscall(ctypes.c_long(number), *args) >= 0
    if done or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print("BREACH", name, os.strerror(ctypes.get_errno()), flush=True)

import atexit
atexit.register(lambda: print("DONE", flush=True))
"""


def prelude(target: str) -> str:
    """What every program starts with; ``target`` is the JSON of what it is aimed at."""
    return _PRELUDE.replace("TARGET", repr(target))


FILES = {
    "read outside": """
for path in (T["canary"], "/etc/shadow", "/etc/passwd", "/proc/1/cmdline", "/proc/self/mountinfo"):
    attempt(path, lambda: open(path, "rb").read(1))
for follow in (True, False):
    for path in (T["canary"], "/etc/passwd"):
        attempt("attributes", lambda: os.listxattr(path, follow_symlinks=follow))
    named = dict(attribute="user.agentrl", follow_symlinks=follow)
    attempt("attribute", lambda: os.getxattr(T["canary"], **named))
for path in ("/", "/etc", "/home", "/root", "/proc", "/dev", T["folder"]):
    attempt(path, lambda: os.listdir(path))
for path in ("/tmp", "/dev/shm", "/var/tmp"):  # it may have its own
    attempt(path, lambda: os.listdir(path).index(os.path.basename(T["folder"])))
""",
    "write outside": """
attempt("append", lambda: open(T["canary"], "ab").close())
attempt("truncate by opening", lambda: os.close(os.open(T["canary"], os.O_RDONLY | os.O_TRUNC)))
attempt("truncate", lambda: os.truncate(T["canary"], 0))
attempt("create", lambda: open(T["folder"] + "/made", "x").close())
attempt("mkdir", lambda: os.mkdir(T["folder"] + "/made"))
attempt("unlink", lambda: os.unlink(T["canary"]))
attempt("rename out", lambda: (open("own", "w").close(), os.rename("own", T["folder"] + "/made")))
attempt("rename in", lambda: os.rename(T["canary"], "stolen"))
for path in T["made"]:  # it may have such folders of its own: the owner looks for these files
    try: open(path, "x").close()
    except OSError: pass
""",
    "change the mode of a file outside": """
for change in (lambda: os.chmod(T["canary"], 0o600), lambda: os.utime(T["canary"], (1, 1)),
               lambda: os.chmod(T["folder"], 0o700)):
    attempt("metadata", change)
""",
    "write to /proc/sys": """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger",
             "/sys/kernel/uevent_helper", "/proc/self/oom_score_adj"):
    attempt(path, lambda: os.close(os.open(path, os.O_WRONLY)))
""",
    "links": """
attempt("symlink", lambda: (os.symlink(T["canary"], "soft"), open("soft").read()))
attempt("hard link", lambda: (os.link(T["canary"], "hard"), open("hard").read()))
attempt("link to a folder", lambda: (os.symlink(T["folder"], "way"), os.listdir("way")))
attempt("magic link", lambda: open("/proc/self/root" + T["canary"]).read())
attempt("dot dot", lambda: open("../" * 40 + T["canary"].lstrip("/")).read())
""",
    "devices": """
for path in ("/dev/mem", "/dev/kmsg", "/dev/port", "/dev/sda", "/dev/vda", "/dev/ptmx", "/dev/tty",
             "/dev/kvm", "/dev/fuse", "/dev/vsock", "/dev/net/tun"):
    attempt(path, lambda: os.close(os.open(path, os.O_RDONLY)))
attempt("mknod", lambda: os.mknod("device", 0o600 | 0o020000, os.makedev(1, 1)))
""",
    "chroot": """
attempt("chroot", lambda: os.chroot("."))
attempt("chdir out", lambda: (os.chdir(T["folder"]), open("canary").read()))
""",
    "change a file outside by its descriptor": """
import fcntl, itertools
def readable():  # where the interpreter lies, and whatever else it may import
    for place in {os.path.dirname(os.__file__), *sys.path}:
        for folder, _, names in os.walk(place):
            for name in names[:20]: yield os.path.join(folder, name)
own, tried = os.path.realpath("."), [os.__file__]
for path in itertools.islice(readable(), 2000):
    try: owner = os.stat(path).st_uid
    except OSError: continue
    if owner == os.getuid() and not os.path.realpath(path).startswith(own): tried.append(path)
    if len(tried) > 3: break
def mark(fd):
    os.setxattr(fd, "user.agentrl", b"x"); os.removexattr(fd, "user.agentrl")
def flags(fd):
    word = bytearray(8)
    fcntl.ioctl(fd, 0x80086601, word); fcntl.ioctl(fd, 0x40086602, word)
for path in tried:
    try: fd = os.open(path, os.O_RDONLY)
    except OSError: continue
    info = os.fstat(fd)
    attempt("mode", lambda: os.fchmod(fd, info.st_mode & 0o7777))
    attempt("owner", lambda: os.fchown(fd, info.st_uid, info.st_gid))
    attempt("times", lambda: os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns)))
    attempt("attribute", lambda: mark(fd))
    attempt("flags", lambda: flags(fd))
    attempt("lease", lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK))
    if libc.syscall(ctypes.c_long(452), fd, b"", info.st_mode & 0o7777, 0x1000) == 0:
        print("BREACH fchmodat2")
    os.close(fd)
""",
    "the mount table": """
request, found = struct.pack("=IIQQ", 24, 0, 2**64 - 1, 0), ctypes.create_string_buffer(4096)
if libc.syscall(ctypes.c_long(458), request, found, ctypes.c_long(100), 0) >= 0:
    print("BREACH listmount")
""",
    "outside by a program": """
import subprocess
look = "cat " + T["canary"] + " /etc/shadow; ls " + T["folder"]
seen = subprocess.run(["sh", "-c", look], capture_output=True)
if seen.stdout: print("BREACH", seen.stdout[:200])
""",
}

SECRETS = {
    "environment and memory of others": """
for pid in {1, PARENT, T["owner"]}:
    for name in ("environ", "mem", "maps", "cwd/x", "fd/0", "root/etc/shadow", "auxv", "stack"):
        attempt(f"{pid}/{name}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
""",
    "environment of the run": """
own = {"PATH", "HOME", "TMPDIR", "LANG", "USER", "LOGNAME", "LC_CTYPE", "PWD", "SHLVL", "_"}
extra = set(os.environ) - own
if extra: print("BREACH", extra)
""",
    "kernel log": """
buffer = ctypes.create_string_buffer(256)
if libc.klogctl(3, buffer, 256) > 0: print("BREACH", buffer.raw)
""",
}

NETWORK = {
    "loopback services": """
def tcp(): socket.create_connection(("127.0.0.1", T["tcp"]), timeout=2).close()
attempt("tcp", tcp)
def udp():
    s = socket.socket(type=socket.SOCK_DGRAM); s.sendto(b"x", ("127.0.0.1", T["udp"]))
attempt("udp", udp)
def serve():
    s = socket.socket(); s.bind(("0.0.0.0", 0)); s.listen()
attempt("listen", serve)
""",
    "unix sockets": """
def connect(address):
    s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect(address)
attempt("abstract", lambda: connect("\\0" + T["abstract"]))
attempt("named", lambda: connect(T["unix"]))
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket",
             "/run/systemd/private"):
    attempt(path, lambda: connect(path))
""",
    "datagrams by a socket pair": """
places = [T["datagrams"], "\\0" + T["abstract_datagrams"]]
places += ["/run/systemd/journal/socket", "/run/systemd/journal/dev-log", "/dev/log"]
places += ["/run/systemd/notify"]
def sender(kind): return socket.socketpair(socket.AF_UNIX, kind)[0]
for place in places:
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        attempt("sendto", lambda: sender(kind).sendto(b"", place))
        attempt("sendmsg", lambda: sender(kind).sendmsg([b""], [], 0, place))
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        attempt("connect", lambda: sender(kind).connect(place))
""",
    "the internet and metadata": """
for host in ("169.254.169.254", "1.1.1.1"):
    attempt(host, lambda: socket.create_connection((host, 80), timeout=1).close())
attempt("dns", lambda: socket.getaddrinfo("example.com", 80))
""",
    "other socket families": """
# vsock, netlink, packet, alg, bluetooth, tipc, xdp, nfc
for family in (40, 16, 17, 38, 31, 30, 44, 39):
    kind = socket.SOCK_RAW if family in (16, 17) else socket.SOCK_DGRAM
    attempt(family, lambda: socket.socket(family, kind))
    attempt(family, lambda: socket.socket(family, socket.SOCK_STREAM))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
""",
}

PROCESSES = {
    "signal others": """
# in a pid namespace of its own, 1 is its own
for pid in {T["owner"], PARENT, 1 if os.getppid() else PARENT}:
    attempt(pid, lambda: os.kill(pid, 0))
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(T["owner"]), 0))
""",
    "trace others": """
for pid in (T["owner"], PARENT):
    if libc.ptrace(0x4206, pid, None, None) == 0: print("BREACH seize")
    data = ctypes.create_string_buffer(8)
    iov = (ctypes.c_size_t * 2)(ctypes.addressof(data), 8)
    if libc.process_vm_readv(pid, iov, 1, iov, 1, 0) > 0: print("BREACH process_vm_readv")
""",
    "limits and priority of others": """
import resource
for pid in (T["owner"], PARENT):
    attempt("prlimit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE))
    attempt("affinity", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
    same = lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    attempt("priority", same)
""",
    "stay below the host": """
if os.getppid() == 1: print("BREACH")
try: os.setpgid(0, os.getppid()); print("BREACH joined the host's group")
except OSError: pass
""",
}

KERNEL = {
    "namespaces and mounts": """
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000):
    if libc.unshare(flag) == 0: print("BREACH unshare", hex(flag))
syscall("clone", 56, 220, 0x10000000 | 17, 0, 0, 0, 0)
if libc.mount(b"none", b".", b"tmpfs", 0, None) == 0: print("BREACH mount", libc.umount2(b".", 2))
syscall("clone3", 435, 435, None, 0)
syscall("setns", 308, 268, -1, 0)
syscall("fsopen", 430, 430, None, 0)
syscall("open_tree", 428, 428, -1, None, 0)
""",
    "io_uring": """
syscall("io_uring_setup", 425, 425, 1, None)
syscall("io_uring_enter", 426, 426, -1, 0, 0, 0, None, 0)
""",
    "kernel surfaces": """
syscall("keyctl", 250, 219, 0, -3, 0)
syscall("add_key", 248, 217, None, None, None, 0, -3)
syscall("userfaultfd", 323, 282, 1)
syscall("bpf", 321, 280, 0, None, 0)
syscall("perf_event_open", 298, 241, None, 0, -1, -1, 0)
syscall("kexec_load", 246, 104, 0, 0, None, 0)
syscall("finit_module", 313, 273, -1, None, 0)
syscall("open_by_handle_at", 304, 265, -1, None, 0)
syscall("ptrace", 101, 117, 0, 0, 0, 0)
syscall("pidfd_getfd", 438, 438, -1, 0, 0)
syscall("personality", 135, 92, 0x0040000)
syscall("memfd_secret", 447, 447, 0)
syscall("shmget", 29, 194, 0, 4096, 0o1600)
""",
    "what the machine has once": """
context = ctypes.c_ulong(0)
syscall("io_setup", 206, 0, 1, ctypes.byref(context))
syscall("inotify_init1", 294, 26, 0)
syscall("fanotify_init", 300, 262, 0, 0)
""",
    "signals and timers that are counted by user": """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
queued = sum(libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0 for _ in range(1000))
timer = ctypes.c_int()
number = ctypes.c_long(222 if os.uname().machine == "x86_64" else 107)
made = sum(libc.syscall(number, 1, None, ctypes.byref(timer)) == 0 for _ in range(1000))
if queued > 500 or made > 500: print("BREACH", queued, made)
""",
    "calls of newer kernels": """
for number in range(470, 548):
    syscall(number, number, number, -1, -1, -1, -1, -1, -1)
""",
    "new privileges": """
if libc.prctl(39, 0, 0, 0, 0) != 1: print("BREACH privileges can be gained by a setuid program")
if libc.prctl(21, 0, 0, 0, 0) not in (2, -1): print("BREACH no filter")
""",
    "foreign system call table": """
if os.uname().machine == "x86_64":
    pid = os.fork()
    if pid == 0:
        libc.syscall(ctypes.c_long(0x40000000 | 39))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGSYS: print("BREACH x32")
""",
}

USER = {
    "not root and not the owner": """
if 0 in (os.getuid(), os.geteuid(), os.getgid(), os.getegid()): print("BREACH root")
if os.getuid() == T["owner_uid"]: print("BREACH the owner")
if os.getgroups() not in ([], [os.getgid()]): print("BREACH groups", os.getgroups())
attempt("setuid", lambda: os.setuid(0))
attempt("setgroups", lambda: os.setgroups([0]))
""",
}
