/* A host whose ranks do something wrong when they send data to others, for LD_PRELOAD.
 *
 * MISDEED: wrong (one bit of what is sent is another), hang (it is never sent) or die. MISDEED_ONE_IN: only one of so
 * many processes does it. Data is what gloo gives to writev(2) in pieces of a page and more; the processes of the
 * doctor itself send none.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 16, CHANGED = 64 };

static int does_it(void)
{
	static pid_t decided_by;
	static int does;
	if (decided_by != getpid()) {
		unsigned drawn = 0;
		const char *one_in = getenv("MISDEED_ONE_IN");
		if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
			abort();
		does = drawn % (one_in ? (unsigned)atoi(one_in) : 1) == 0;
		decided_by = getpid();
	}
	return does;
}

ssize_t writev(int fd, const struct iovec *pieces, int count)
{
	static ssize_t (*real)(int, const struct iovec *, int);
	const char *misdeed = getenv("MISDEED");
	char copy[CHANGED];
	struct iovec changed[MOST + 1];
	int last = count - 1;
	if (!real)
		real = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
	if (!misdeed || count < 1 || count > MOST || pieces[last].iov_len < PAGE || !does_it())
		return real(fd, pieces, count);
	if (strcmp(misdeed, "die") == 0)
		abort();
	while (strcmp(misdeed, "hang") == 0)
		pause();
	memcpy(changed, pieces, count * sizeof *pieces);
	memcpy(copy, pieces[last].iov_base, CHANGED);
	copy[2] ^= 1; /* of the first number's mantissa */
	changed[last] = (struct iovec){copy, CHANGED};
	changed[count] = (struct iovec){(char *)pieces[last].iov_base + CHANGED, pieces[last].iov_len - CHANGED};
	return real(fd, changed, count + 1);
}
