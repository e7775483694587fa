// Not part of a program: each line that ends in "warns" makes a guard that ends at once, and the
// compiler has to warn. See discarded_guards.cmake.
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/autocast_state.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/module_scope.h"

void discard(c10::Device device) {
  mezzo::AutocastGuard(c10::kCPU, c10::kHalf);                         // warns
  mezzo::AutocastGuard(device, c10::kHalf, mezzo::AutocastOptions());  // warns
  mezzo::AutocastGuard{device};                                        // warns
  mezzo::AutocastGuard::disabled(device);                              // warns
  mezzo::AutocastStateGuard(mezzo::AutocastState::current());          // warns
  mezzo::ModuleScope("encoder");                                       // warns
  mezzo::CpuHalfCompute();                                             // warns
  mezzo::FiniteTracer();                                               // warns
  const mezzo::AutocastGuard named(device, c10::kHalf);
}
