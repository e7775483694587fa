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

/// Writes scalars to a TensorBoard event file, as Python's `torch.utils.tensorboard.SummaryWriter`
/// does. Each writer makes a new file in `folder`, `events.out.tfevents.TIME.HOST.PID.N`. So a
/// resumed run adds a file to the earlier files. Not thread-safe.
///
/// @code
/// mezzo::text::TensorBoardWriter board("out/tensorboard");
/// board.add_scalar("train/loss", 0.41, /*step=*/178);
/// @endcode
class TensorBoardWriter {
 public:
  /// Options of a TensorBoardWriter.
  struct Options {
    /// The number of records per write. The destructor writes the rest.
    int64_t flush_every = 1;
    /// For a resumed run, its first step: TensorBoard ignores this and later steps of earlier
    /// files.
    std::optional<int64_t> purge_step;
  };

  /// Creates the file, and `folder` if it is missing.
  /// @throws c10::Error  if that fails
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  /// The same with options.
  TensorBoardWriter(const std::filesystem::path& folder, const Options& options);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// Adds a point to the curve `tag`; a slash in the tag groups curves.
  /// @param value  stored as float32; NaN and infinities are allowed
  /// @param wall_time  seconds since 1970; default: now
  /// @throws c10::Error  if writing fails, e.g. on a full disk
  void add_scalar(std::string_view tag, double value, int64_t step, std::optional<double> wall_time = std::nullopt);

  /// Passes all gathered records to the system.
  /// @throws c10::Error  as add_scalar
  void flush();

  /// The path of the event file.
  const std::filesystem::path& path() const;

 private:
  void add_event(std::string_view event);

  int64_t flush_every_;
  std::unique_ptr<AppendFile> file_;
  int64_t buffered_records_ = 0;
};

}  // namespace mezzo::text
