#include "text/launch/signal_pipe.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <cerrno>

namespace mezzo::text {
namespace {

std::atomic<int> write_end = -1;

void note_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const auto written = ::write(write_end, &byte, 1);
  errno = saved;
}

/// Not SIG_IGN, which children would inherit.
void pass_over(int /*signal*/) {}

}  // namespace

SignalPipe::SignalPipe() : pipe_(make_pipe()) {
  set_nonblocking(pipe_.read.get());
  set_nonblocking(pipe_.write.get());
  int none = -1;
  TORCH_CHECK(write_end.compare_exchange_strong(none, pipe_.write.get()),
              "launch: another launch of this process has not ended yet");
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD, SIGWINCH, SIGPIPE}) {
    struct sigaction before{};
    ::sigaction(signal, nullptr, &before);
    if ((signal == SIGHUP || signal == SIGPIPE) && before.sa_handler == SIG_IGN) {
      continue;  // under nohup
    }
    struct sigaction action{};
    action.sa_handler = signal == SIGPIPE ? pass_over : note_signal;
    ::sigfillset(&action.sa_mask);  // without SA_RESTART: a write that blocks is interrupted
    ::sigaction(signal, &action, nullptr);
    before_.emplace_back(signal, before);
  }
}

SignalPipe::~SignalPipe() {
  for (const auto& [signal, before] : before_) {
    ::sigaction(signal, &before, nullptr);
  }
  write_end = -1;
}

std::vector<int> SignalPipe::take() {
  std::vector<int> signals;
  std::array<unsigned char, 256> bytes{};
  for (ssize_t count = 0; (count = ::read(fd(), bytes.data(), bytes.size())) > 0;) {
    signals.insert(signals.end(), bytes.begin(), bytes.begin() + count);
  }
  return signals;
}

}  // namespace mezzo::text
