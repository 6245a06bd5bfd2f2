/* Lengthens the polling interval of gloo's event loop. Optional.
 *
 * gloo waits for events in epoll_wait(.., 10 ms) and goes round again, only to notice that its
 * device was closed. In virtual time, 64 such loops are most of what an emulated second costs,
 * and no result depends on them: an event still ends the wait at once. Ranks end with _exit and
 * close nothing. Not for real time, where closing a connection would take up to the interval.
 *
 *     cc -O2 -shared -fPIC -o epoll_shim.so epoll_shim.c -ldl
 *     LD_PRELOAD=/path/to/epoll_shim.so python -m netbench.trainers ...
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/epoll.h>

enum { GLOO_INTERVAL_MS = 10, INTERVAL_MS = 10000 };

int epoll_wait(int epfd, struct epoll_event *events, int capacity, int timeout_ms)
{
    static int (*real)(int, struct epoll_event *, int, int);

    if (!real)
        real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
    if (timeout_ms == GLOO_INTERVAL_MS)
        timeout_ms = INTERVAL_MS;
    return real(epfd, events, capacity, timeout_ms);
}
