#include "stop_signal.h"

#include <unistd.h>

#include <csignal>

namespace mezzo::app {
namespace {

volatile std::sig_atomic_t caught = 0, is_heeded = 0;

extern "C" void note_signal(int signal) {
  if (!is_heeded) {
    ::_exit(128 + signal);
  }
  caught = signal;
  if (signal != SIGHUP) {          // which shell and kernel both send where a terminal is closed
    std::signal(signal, SIG_DFL);  // the next one is not caught
  }
}

}  // namespace

void catch_stop_signals() {
  std::signal(SIGTERM, note_signal);
  std::signal(SIGINT, note_signal);
  if (std::signal(SIGHUP, note_signal) == SIG_IGN) {
    std::signal(SIGHUP, SIG_IGN);  // under nohup
  }
}

int stop_signal() {
  is_heeded = 1;
  return caught;
}

StopSignals::StopSignals()
    : interrupt_(std::signal(SIGINT, note_signal)),
      terminate_(std::signal(SIGTERM, note_signal)),
      were_heeded_(is_heeded != 0) {
  is_heeded = 1;
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, interrupt_);
  std::signal(SIGTERM, terminate_);
  is_heeded = were_heeded_ ? 1 : 0;
}

}  // namespace mezzo::app
