/// g++ 12 binds std::condition_variable::wait to the version that libstdc++ 12 added, which differs in `noexcept`
/// alone. The version before lets the wheel run on distributions with libstdc++ 11. The linker replaces the calls
/// (--wrap).
#include <condition_variable>
#include <mutex>

__asm__(".symver mezzo_wait, _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");

extern "C" {

void mezzo_wait(std::condition_variable* self, std::unique_lock<std::mutex>& lock);

void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* self,
                                                                      std::unique_lock<std::mutex>& lock) {
  mezzo_wait(self, lock);
}

}  // extern "C"
