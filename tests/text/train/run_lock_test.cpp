#include "text/train/run_lock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>

#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

TEST(RunLockTest, TheSecondIsToldWhoHoldsIt) {
  const ScratchFolder folder;
  const RunLock first(folder.path());
  const std::string message = value_error([&] { RunLock second(folder.path()); }, folder);
  EXPECT_NE(message.find("a run is writing there (process " + std::to_string(getpid()) + " on "), message.npos)
      << message;
}

TEST(RunLockTest, EndsWithItsOwnerAndTakesItsFileAlong) {
  const ScratchFolder folder;
  {
    const RunLock first(folder.path());
    EXPECT_TRUE(std::filesystem::exists(folder / ".run.lock"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const RunLock second(folder.path());
}

TEST(RunLockTest, TheFileOfAProcessThatDiedIsNoLock) {
  const ScratchFolder folder;
  folder.write(".run.lock", "process 1 on a host with a long name that is longer than what the next one writes\n");
  const RunLock lock(folder.path());
  EXPECT_EQ(ScratchFolder::read(folder / ".run.lock").find("process " + std::to_string(getpid()) + " on "), 0);
}

TEST(RunLockTest, LeavesTheLockOfAnotherAloneWhereTheFolderWasMadeAgain) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "out");
  std::optional<RunLock> first(std::in_place, folder / "out");
  std::filesystem::remove_all(folder / "out");
  std::filesystem::create_directory(folder / "out");
  const RunLock second(folder / "out");
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(folder / "out/.run.lock"));
}

}  // namespace
}  // namespace mezzo::text
