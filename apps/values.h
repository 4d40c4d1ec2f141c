// SPDX-License-Identifier: Apache-2.0
// Flags for numbers with a point, and files given by flags. Messages begin with the flag.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cistern/status.h"
#include "command_line.h"

namespace cistern {

void Number(CommandLine& line, std::string_view flag, std::string_view help, std::optional<double>* value,
            double least, double most);
// From 0.001 to 1.
void Share(CommandLine& line, std::string_view flag, std::string_view help, double* value);

// At most 16 MiB.
Result<std::string> ReadFile(std::string_view flag, const std::string& path);
Status WriteFile(std::string_view flag, const std::string& path, const std::string& text);

}  // namespace cistern
