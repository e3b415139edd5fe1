/* Preloaded: where NCCL asks a socket without pause whether something has come, this waits a moment for it, so that many
 * ranks fit on few processors. What is sent and received, and in which order, stays NCCL's. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
enum { MOMENT_MS = 5 };

/* Whether a call that found nothing is worth to be made again. */
static int came(long result, int file) {
    struct pollfd wanted = {file, POLLIN, 0};
    if (result >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return 0;
    int found = poll(&wanted, 1, MOMENT_MS) > 0;
    errno = EAGAIN;
    return found;
}

EXPORT ssize_t recv(int file, void *bytes, size_t size, int flags) {
    ssize_t result = REAL(recv)(file, bytes, size, flags);
    return came(result, file) ? REAL(recv)(file, bytes, size, flags) : result;
}

EXPORT ssize_t recvmsg(int file, struct msghdr *message, int flags) {
    ssize_t result = REAL(recvmsg)(file, message, flags);
    return came(result, file) ? REAL(recvmsg)(file, message, flags) : result;
}

EXPORT int accept(int file, struct sockaddr *address, socklen_t *size) {
    int result = REAL(accept)(file, address, size);
    return came(result, file) ? REAL(accept)(file, address, size) : result;
}
