#include "stop_signal.h"

#include <csignal>

namespace mezzo::app {
namespace {

volatile std::sig_atomic_t caught = 0;

extern "C" void note_signal(int signal) {
  caught = signal;
  std::signal(signal, SIG_DFL);  // the next one is not caught
}

}  // namespace

void catch_stop_signals() {
  std::signal(SIGTERM, note_signal);
  std::signal(SIGINT, note_signal);
}

int stop_signal() { return caught; }

}  // namespace mezzo::app
