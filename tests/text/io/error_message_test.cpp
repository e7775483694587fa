#include "mezzo/text/io/error_message.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <stdexcept>

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
  EXPECT_EQ(said_by([] { TORCH_CHECK_VALUE(false, "so it is"); }), "so it is");
  EXPECT_EQ(said_by([] { throw std::runtime_error("plain"); }), "plain");
  EXPECT_EQ(said_by([] { throw std::filesystem::filesystem_error("odd", std::error_code()); }),
            "filesystem error: odd: Success");
}

}  // namespace
}  // namespace mezzo::text
