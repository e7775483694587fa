#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <string>

#include "mezzo/text/checkpoint/checkpoint.h"

namespace mezzo::text {

/// Writes a checkpoint beside training: from a copy of its tensors, by a thread that takes what processor time training
/// leaves. For one thread.
class BackgroundSave {
 public:
  /// How a write ended.
  struct Outcome {
    int64_t step = 0;
    std::exception_ptr error;  ///< null: it is on the disk
    std::string warning;       ///< a problem that did not prevent the save; empty: none
  };
  /// Returns a warning, or nothing. @throws std::exception
  using Write = std::function<std::string(const Checkpoint&)>;

  /// Copies the contents of the checkpoint, and begins to write. Nothing may be under way.
  /// @param checkpoint  is taken; if this throws, it is still usable
  /// @throws std::exception  if memory or a thread for it is lacking; then nothing is under way
  void begin(Checkpoint& checkpoint, Write write);

  bool is_under_way() const { return written_.valid(); }
  bool is_done() const;

  /// Waits for the save under way.
  Outcome finish();

 private:
  int64_t step_ = 0;
  std::future<std::string> written_;  // its destructor waits
};

}  // namespace mezzo::text
