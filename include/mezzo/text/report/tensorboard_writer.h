#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace mezzo::text {

class AppendFile;

/// Writes scalars to a TensorBoard event file, as `torch.utils.tensorboard.SummaryWriter` does in
/// Python. Each writer makes a file of its own in `folder`, `events.out.tfevents.TIME.HOST.PID.N`,
/// so a resumed run adds one to those of the run it goes on with. Not thread-safe.
///
/// @code
/// mezzo::text::TensorBoardWriter board("out/tensorboard");
/// board.add_scalar("train/loss", 0.41, /*step=*/178);
/// @endcode
class TensorBoardWriter {
 public:
  struct Options {
    /// Records to gather before they are written. The destructor writes the rest.
    int64_t flush_every = 1;
    /// For a resumed run, the first step it will write: TensorBoard forgets that step and
    /// later ones of earlier files.
    std::optional<int64_t> purge_step;
  };

  /// Makes `folder` where it is missing, and the file.
  /// @throws c10::Error  if that fails.
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  TensorBoardWriter(const std::filesystem::path& folder, const Options& options);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Adds a point to the curve `tag`; a slash in the tag groups curves.
  /// @param value  kept as float32; NaN and infinities are legal.
  /// @param wall_time  seconds since 1970; now, unless given.
  /// @throws c10::Error  if writing fails, e.g. on a full disk.
  void add_scalar(std::string_view tag, double value, int64_t step, std::optional<double> wall_time = std::nullopt);

  /// Hands what was gathered to the system.
  /// @throws c10::Error  as add_scalar.
  void flush();

  const std::filesystem::path& path() const;

 private:
  void add_event(std::string_view event);

  int64_t flush_every_;
  std::unique_ptr<AppendFile> file_;
  int64_t buffered_records_ = 0;
};

}  // namespace mezzo::text
