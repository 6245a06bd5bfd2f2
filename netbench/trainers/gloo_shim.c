/* Spares gloo's event loop system calls, which are most of what an emulation costs. Optional.
 *
 * A system call in User-Mode Linux is two switches between processes of the host.
 *
 * - gloo waits for events in epoll_wait(.., 10 ms) and goes round again, only to notice that its
 *   device was closed. 64 such loops are most of what an emulated second of waiting costs. The
 *   interval is made longer. An event still ends the wait at once.
 * - gloo reads the header of a message, then its payload, and then asks until there is no more.
 *   Here one call also reads what follows into a buffer, from which later calls are answered. A
 *   call that brought less than it had room for has emptied the socket, so the next is told that
 *   there is no more without asking the kernel. gloo reads until it is told so: nothing stays in
 *   the buffer while it waits for events.
 * - gloo wakes for every packet of a message. But it uses a message only when it is complete. So
 *   the kernel is told to wake it (SO_RCVLOWAT) when all that is missing is there, or
 *   NETBENCH_WAKE_BYTES of it, if that variable is set. It is never more than what is missing: then
 *   the last bytes would be waited for in vain.
 *
 * - gloo passes over an event while another thread uses the connection, and is told of it again at
 *   once. It then lets that thread go on, which no clock would do where computing takes no time.
 * - gloo asks for the time before each read, and uses it only where it spins. Its loop is told what
 *   the clock read first.
 *
 * In virtual time, calls take none, but readings of the clock take a quarter of a microsecond. With
 * NETBENCH_WAKE_BYTES, threads wake and read it a few times more or less in an iteration. Not for
 * real time, where closing a connection would take up to the interval. Ranks end with _exit and
 * close nothing.
 *
 *     cc -O2 -shared -fPIC -o gloo_shim.so gloo_shim.c -ldl
 *     LD_PRELOAD=/path/to/gloo_shim.so python -m netbench.trainers ...
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum {
    GLOO_INTERVAL_MS = 10,
    INTERVAL_MS = 10000,
    MAX_FDS = 65536,
    BUFFER_BYTES = 16384,
};

/* What has been read from a socket, of which gloo has had `from` of `to` bytes. */
struct ahead {
    size_t from, to;
    int is_empty; /* the socket, when it was last read */
    char bytes[BUFFER_BYTES];
};

static struct ahead *ahead[MAX_FDS]; /* of sockets on which gloo waits for events */
static int low_bytes[MAX_FDS];       /* SO_RCVLOWAT of each; 0 = the kernel's default of 1 */

static __thread int is_loop;   /* whether this thread is gloo's event loop */
static __thread int is_unread; /* whether it has an event, and has not read since */

/* Set `*at` to 0 if the address it holds is in the code of torch. */
static int look(struct dl_phdr_info *object, size_t size, void *at)
{
    ElfW(Addr) offset = *(ElfW(Addr) *)at - object->dlpi_addr;
    const ElfW(Phdr) *part = object->dlpi_phdr, *end = part + object->dlpi_phnum;
    const char *name = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;

    (void)size;
    if (!name || strncmp(name, "/libtorch", strlen("/libtorch")))
        return 0;
    for (; part < end; part++)
        if (part->p_type == PT_LOAD && offset - part->p_vaddr < part->p_memsz)
            return (*(ElfW(Addr) *)at = 0) == 0;
    return 0;
}

static int is_torch(void *caller)
{
    ElfW(Addr) at = (ElfW(Addr))caller;

    dl_iterate_phdr(look, &at);
    return !at;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*real)(clockid_t, struct timespec *);
    static __thread struct timespec first;

    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (!is_loop || clock != CLOCK_MONOTONIC)
        return real(clock, time);
    if (!first.tv_sec && real(clock, &first))
        return -1;
    *time = first;
    return 0;
}

int epoll_wait(int epfd, struct epoll_event *events, int capacity, int timeout_ms)
{
    static int (*real)(int, struct epoll_event *, int, int);
    int count;

    if (!real)
        real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    if (timeout_ms != GLOO_INTERVAL_MS || !(is_loop || is_torch(__builtin_return_address(0))))
        return real(epfd, events, capacity, timeout_ms);
    is_loop = 1;
    if (is_unread)
        sched_yield();
    count = real(epfd, events, capacity, INTERVAL_MS);
    is_unread = count > 0;
    return count;
}

/* Forget the socket: another may get its number. */
int close(int fd)
{
    static int (*real)(int);

    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "close");
    if (fd >= 0 && fd < MAX_FDS && ahead[fd]) {
        free(ahead[fd]);
        ahead[fd] = NULL;
        low_bytes[fd] = 0;
    }
    return real(fd);
}

/* Python asks for as much as there is, gloo for what is missing of a message. */
static int is_gloo(void *caller)
{
    static void *known; /* gloo has one place that receives */

    if (caller == known)
        return 1;
    if (!is_torch(caller))
        return 0;
    known = caller;
    return 1;
}

/* Have the kernel report an event when `size` bytes have come, or as many as are asked for. */
static void wake_at(int fd, size_t size)
{
    static long most = -1;
    const char *bytes;
    int wanted;

    if (most < 0) {
        bytes = getenv("NETBENCH_WAKE_BYTES");
        most = bytes ? atol(bytes) : 0;
    }
    if (!most)
        return;
    wanted = (int)(size < (size_t)most ? size : (size_t)most);
    if (wanted != low_bytes[fd] && !setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted))
        low_bytes[fd] = wanted;
}

/* Receive from a socket of gloo, or answer from what was read ahead. */
static ssize_t receive(struct ahead *have, int fd, void *buffer, size_t size)
{
    struct iovec places[] = {{buffer, size}, {have->bytes, BUFFER_BYTES}};
    size_t rest = have->to - have->from;
    ssize_t received;

    if (rest) {
        received = (ssize_t)(rest < size ? rest : size);
        memcpy(buffer, have->bytes + have->from, (size_t)received);
        have->from += (size_t)received;
        return received;
    }
    if (have->is_empty) {
        have->is_empty = 0;
        errno = EAGAIN;
        return -1;
    }
    received = readv(fd, places, 2);
    if (received <= 0)
        return received;
    have->is_empty = (size_t)received < size + BUFFER_BYTES;
    have->from = have->to = 0;
    if ((size_t)received > size) {
        have->to = (size_t)received - size;
        received = (ssize_t)size;
    }
    return received;
}

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
    static ssize_t (*real)(int, void *, size_t, int);
    ssize_t received;

    if (!real)
        real = (ssize_t (*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    is_unread = 0;
    if (fd < 0 || fd >= MAX_FDS || flags || !size)
        return real(fd, buffer, size, flags);
    received = ahead[fd] ? receive(ahead[fd], fd, buffer, size) : real(fd, buffer, size, flags);
    if (received == -1 && errno == EAGAIN && (ahead[fd] || is_gloo(__builtin_return_address(0)))) {
        if (!ahead[fd])
            ahead[fd] = calloc(1, sizeof *ahead[fd]);
        wake_at(fd, size);
        errno = EAGAIN;
    }
    return received;
}
