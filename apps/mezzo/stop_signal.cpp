#include "stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <ctime>

namespace mezzo::app {
namespace {

volatile std::sig_atomic_t caught = 0, is_heeded = 0;
volatile std::int64_t caught_at = 0;

std::int64_t now_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
}

extern "C" void note_signal(int signal) {
  if (!is_heeded) {
    ::_exit(128 + signal);
  }
  // Shell and kernel both send SIGHUP when a terminal is closed. Slurm and systemd signal every process, and the
  // launcher passes its signal on.
  const bool is_echo = signal == SIGHUP || now_ms() - caught_at < 500;
  if (caught != 0 && !is_echo) {
    std::signal(signal, SIG_DFL);
    sigset_t one;
    ::sigemptyset(&one);
    ::sigaddset(&one, signal);
    ::raise(signal);
    ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    ::_exit(128 + signal);  // the first process of a container outlives that
  }
  if (caught == 0) {
    caught_at = now_ms();
    caught = signal;
  }
}

}  // namespace

void catch_stop_signals() {
  std::signal(SIGTERM, note_signal);
  std::signal(SIGINT, note_signal);
  std::signal(SIGUSR1, note_signal);
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
