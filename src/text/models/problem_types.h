#pragma once

#include <array>
#include <string_view>

namespace mezzo::text {

/// Those of config.json that there is a Task for, which make_task() makes.
constexpr std::array<std::string_view, 1> kProblemTypes = {"single_label_classification"};

}  // namespace mezzo::text
