/// The C library before 2.34 runs a program's constructors by a function that the program brings. Files for the start
/// of a program that come with a newer one bring none. The linker calls this in place of __libc_start_main (--wrap).
extern "C" {

using Main = int(int, char**, char**);
using Constructor = void(int, char**, char**);
[[gnu::visibility("hidden")]] extern Constructor *__init_array_start[], *__init_array_end[];

int __real___libc_start_main(Main*, int, char**, Constructor*, void (*)(), void (*)(), void*);

static void construct(int argc, char** argv, char** environment) {
  for (Constructor** one = __init_array_start; one != __init_array_end; ++one) (*one)(argc, argv, environment);
}

int __wrap___libc_start_main(
    Main* main, int argc, char** argv, Constructor*, void (*)(), void (*finish)(), void* stack) {
  return __real___libc_start_main(main, argc, argv, construct, nullptr, finish, stack);
}

}  // extern "C"
