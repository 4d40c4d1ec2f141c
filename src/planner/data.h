// SPDX-License-Identifier: Apache-2.0
// The files of src/planner/data, compiled in: cmake/house.cmake makes their texts into functions.
#pragma once

#include <string_view>

namespace cistern::planner {

std::string_view DataGpus();
std::string_view DataMedia();
std::string_view DataModels();

}  // namespace cistern::planner
