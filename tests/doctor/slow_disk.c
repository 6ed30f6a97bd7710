/* A disk that answers late, for the planted faults: loaded before the C library (LD_PRELOAD), it lets every read at a place and
   every flush sleep for MILLRACE_SLOW_READ_US and MILLRACE_SLOW_SYNC_MS first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static void sleep_for(const char *name, long unit_us) {
  const char *text = getenv(name);
  if (text) usleep((useconds_t)(atol(text) * unit_us));
}

ssize_t pread(int fd, void *out, size_t count, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
  sleep_for("MILLRACE_SLOW_READ_US", 1);
  return real(fd, out, count, offset);
}

ssize_t pread64(int fd, void *out, size_t count, off64_t offset) {
  static ssize_t (*real)(int, void *, size_t, off64_t);
  if (!real) real = (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
  sleep_for("MILLRACE_SLOW_READ_US", 1);
  return real(fd, out, count, offset);
}

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  sleep_for("MILLRACE_SLOW_SYNC_MS", 1000);
  return real(fd);
}
