#include "mezzo/text/io/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <stdexcept>

#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

size_t count_files(const ScratchFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

TEST(AtomicFileTest, WritesAFileAndLeavesNothingElseBehind) {
  const ScratchFolder folder;
  write_file_atomically(folder / "a", "first");
  write_file_atomically(folder / "a", std::string_view("se\0cond", 7));
  EXPECT_EQ(ScratchFolder::read(folder / "a"), std::string_view("se\0cond", 7));
  EXPECT_EQ(count_files(folder), 1);
}

TEST(AtomicFileTest, KeepsTheOldContentsUntilTheCommit) {
  const ScratchFolder folder;
  write_file_atomically(folder / "a", "old");
  AtomicFile file(folder / "a");
  file.write("new");
  EXPECT_EQ(ScratchFolder::read(folder / "a"), "old");
  file.commit();
  EXPECT_EQ(ScratchFolder::read(folder / "a"), "new");
}

TEST(AtomicFileTest, RemovesTheTemporaryFileWhenAnExceptionLeavesTheScope) {
  const ScratchFolder folder;
  write_file_atomically(folder / "a", "old");
  const auto interrupted = [&] {
    AtomicFile file(folder / "a");
    file.write("half of the n");
    throw std::runtime_error("in between");
  };
  EXPECT_THROW(interrupted(), std::runtime_error);
  EXPECT_EQ(ScratchFolder::read(folder / "a"), "old");
  EXPECT_EQ(count_files(folder), 1);
}

TEST(AtomicFileTest, KeepsTwoWritersOfOnePathApart) {
  const ScratchFolder folder;
  AtomicFile first(folder / "a"), second(folder / "a");
  first.write("first");
  second.write("second");
  second.commit();
  first.commit();
  EXPECT_EQ(ScratchFolder::read(folder / "a"), "first");
  EXPECT_EQ(count_files(folder), 1);
}

TEST(AtomicFileTest, GivesTheFileTheModeThatTheUmaskAllows) {
  const ScratchFolder folder;
  const mode_t mask = umask(027);
  write_file_atomically(folder / "a", "");
  umask(mask);
  struct stat status{};
  ASSERT_EQ(stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640);
}

TEST(AtomicFileTest, ReplacesASymbolicLinkAndNotWhatItPointsAt) {
  const ScratchFolder folder;
  folder.write("shared", "shared");
  std::filesystem::create_symlink("shared", folder / "link");
  write_file_atomically(folder / "link", "mine");
  EXPECT_EQ(ScratchFolder::read(folder / "shared"), "shared");
  EXPECT_EQ(ScratchFolder::read(folder / "link"), "mine");
}

TEST(AtomicFileTest, RefusesWhatIsNoRegularFile) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "folder");
  EXPECT_EQ(value_error([&] { AtomicFile file(folder / "folder"); }, folder),
            "folder: exists and is not a regular file. Choose another path.");
  EXPECT_EQ(value_error([&] { AtomicFile file("/dev/null"); }, folder),
            "/dev/null: exists and is not a regular file. Choose another path.");
}

TEST(AtomicFileTest, SaysWhenTheFolderIsMissing) {
  const ScratchFolder folder;
  EXPECT_EQ(value_error([&] { AtomicFile file(folder / "none/a"); }, folder),
            "none/a: cannot be written: No such file or directory.");
}

TEST(AtomicFileTest, SaysWhenTheDiskIsFull) {
  const ScratchFolder folder;
  // A full disk cannot be had without a mount, and /dev/full is not a regular file; a file size
  // limit fails the same call.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = value_error([&] { write_file_atomically(folder / "a", std::string(2000, 'x')); }, folder);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(message, "a: no space left on the disk, or above the file size limit. Free some space or write elsewhere.");
  EXPECT_EQ(count_files(folder), 0);
}

}  // namespace
}  // namespace mezzo::text
