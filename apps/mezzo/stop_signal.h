#pragma once

namespace mezzo::app {

/// From now on SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (Slurm's `--signal`) and SIGHUP end the process with 128 + N. SIGHUP
/// means that the terminal is gone; an ignored SIGHUP stays ignored. From the first call of stop_signal() on, the
/// signals ask the process to stop instead. One more kills it then, half a second later at least, except SIGHUP, which
/// comes twice when a terminal is closed.
void catch_stop_signals();

/// The signal that came, or 0: for those who stop when one has come. Safe to ask from any thread.
int stop_signal();

/// While it lives, stop signals are noted for stop_signal(). Afterwards they have their earlier effect.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  void (*interrupt_)(int);
  void (*terminate_)(int);
  bool were_heeded_;
};

}  // namespace mezzo::app
