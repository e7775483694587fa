#pragma once

namespace mezzo::app {

/// From now on SIGTERM and SIGINT (Ctrl-C) ask the program to stop instead of
/// killing it; a second one kills it.
void catch_stop_signals();

/// The signal that came, or 0. Safe to ask from any thread.
int stop_signal();

}  // namespace mezzo::app
