#pragma once

// Every public header includes this one before all others, so that its error is the first.
#if __cplusplus <= 201703L
#error "mezzo needs C++20: compile with -std=c++20"
#include "mezzo/stop"  // there is no such file: the compiler stops here, instead of at errors that follow from that one
#endif
