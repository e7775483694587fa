#pragma once

namespace mezzo {

/// While this lives, what this thread gives to a device is recorded into a graph and not done:
/// nothing can be read back.
class RecordingScope {
 public:
  RecordingScope() : was_open_(is_open_) { is_open_ = true; }
  ~RecordingScope() { is_open_ = was_open_; }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  static bool is_open() { return is_open_; }

 private:
  static inline thread_local bool is_open_ = false;
  const bool was_open_;
};

}  // namespace mezzo
