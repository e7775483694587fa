#include "mezzo/text/io/error_message.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>

namespace mezzo::text {
namespace {

std::string said_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return message_of(error);
  }
  return "nothing";
}

TEST(ErrorMessageTest, HasThePathFirstAndNoPlaceInSources) {
  EXPECT_EQ(said_by([] { std::filesystem::rename("/no/such", "/nor/this"); }),
            "/no/such: cannot rename: No such file or directory");
  const std::string long_name = "/" + std::string(300, 'x');
  EXPECT_EQ(said_by([&] { std::ignore = std::filesystem::exists(long_name); }),
            long_name + ": cannot be read: File name too long");
  EXPECT_EQ(said_by([] { TORCH_CHECK_VALUE(false, "so it is"); }), "so it is");
  EXPECT_EQ(said_by([] { throw std::runtime_error("plain"); }), "plain");
  EXPECT_EQ(said_by([] { throw std::filesystem::filesystem_error("odd", std::error_code()); }),
            "filesystem error: odd: Success");
}

}  // namespace
}  // namespace mezzo::text
