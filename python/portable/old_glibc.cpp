/// Functions of glibc that are newer than the wheel's symbols. Newer ones are used if the machine has them.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace {

template <class Function>
Function* in_glibc(Function&, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));  // not the hidden one here
}

}  // namespace

extern "C" {

char __libc_single_threaded = 0;

int __xstat(int, const char*, void*);
int __lxstat(int, const char*, void*);
int __fxstat(int, int, void*);
int __fxstatat(int, int, const char*, void*, int);
int stat(const char* path, void* result) { return __xstat(1, path, result); }
int lstat(const char* path, void* result) { return __lxstat(1, path, result); }
int fstat(int file, void* result) { return __fxstat(1, file, result); }
int fstatat(int folder, const char* path, void* result, int flags) {
  return __fxstatat(1, folder, path, result, flags);
}

pid_t gettid() { return static_cast<pid_t>(::syscall(SYS_gettid)); }
int close_range(unsigned first, unsigned last, int flags) {
  constexpr long kCloseRange = 436;
  return static_cast<int>(::syscall(kCloseRange, first, last, flags));
}

const char* sigabbrev_np(int signal) {
  static const auto newer = in_glibc(sigabbrev_np, "sigabbrev_np");
  static const auto older = static_cast<const char* const*>(::dlsym(RTLD_DEFAULT, "sys_sigabbrev"));
  if (newer != nullptr) return newer(signal);
  return older != nullptr && signal > 0 && signal < SIGRTMIN ? older[signal] : nullptr;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  static const auto newer = in_glibc(pthread_cond_clockwait, "pthread_cond_clockwait");
  if (newer != nullptr) return newer(condition, mutex, clock, until);
  constexpr int64_t kSecond = 1'000'000'000;
  const auto nanoseconds = [](const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; };
  timespec now{}, now_real{};
  ::clock_gettime(clock, &now);
  ::clock_gettime(CLOCK_REALTIME, &now_real);
  const int64_t end = nanoseconds(now_real) + nanoseconds(*until) - nanoseconds(now);
  const timespec real{end / kSecond, end % kSecond};
  return ::pthread_cond_timedwait(condition, mutex, &real);
}

}  // extern "C"
