/* A wall clock that is wrong by SKEW_S seconds, for LD_PRELOAD; the monotonic clock stays right.
 *
 * Deadlines on the wall clock are set back before the kernel sees them: else a wait of a second would
 * take an hour and a second. (libfaketime makes time.sleep() fail in Python 3.11 and newer.)
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew_s(void)
{
	const char *set = getenv("SKEW_S");
	return set ? atol(set) : 0;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
	int failed = (int)syscall(SYS_clock_gettime, id, now);
	if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		now->tv_sec += skew_s();
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec exact;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &exact);
	now->tv_sec = exact.tv_sec;
	now->tv_usec = exact.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *seconds)
{
	struct timespec exact;
	clock_gettime(CLOCK_REALTIME, &exact);
	if (seconds)
		*seconds = exact.tv_sec;
	return exact.tv_sec;
}

/* A condition may use either clock and does not say which; no machine has been up for 30 years. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
			   const struct timespec *restrict deadline)
{
	struct timespec real = *deadline;
	if (deadline->tv_sec < 1000000000)
		return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, deadline);
	real.tv_sec -= skew_s();
	return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &real);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline)
{
	struct timespec real = *deadline;
	real.tv_sec -= skew_s();
	return sem_clockwait(semaphore, CLOCK_REALTIME, &real);
}
