// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/format.h"
#include "base/nearest.h"

namespace cistern {
namespace {

constexpr std::size_t kMostFileBytes = 16u << 20;

// A number with a point or without; what range it has to lie in is `least` to `most`.
Result<double> ParseNumber(std::string_view name, std::string_view text, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return Error(Code::kInvalid, Text(name, ": ", Shown(text), " is no number: expected one from ", least,
                                      " to ", most, ", such as 0.5, without a unit"));
  }
  if (value < least || value > most) {
    return Error(Code::kInvalid, Text(name, ": ", value, " is out of range: expected ", least, " to ", most));
  }
  return value;
}

}  // namespace

void Number(CommandLine& line, std::string_view flag, std::string_view help, std::optional<double>* value,
            double least, double most) {
  line.Flag(flag, "NUMBER", help, [name = std::string(flag), value, least, most](std::string_view text) {
    Result<double> number = ParseNumber(name, text, least, most);
    if (number) *value = *number;
    return number ? Status() : number.error();
  });
}

void Share(CommandLine& line, std::string_view flag, std::string_view help, double* value) {
  line.Flag(flag, "NUMBER", help, [name = std::string(flag), value](std::string_view text) {
    Result<double> number = ParseNumber(name, text, 0.001, 1);
    if (number) *value = *number;
    return number ? Status() : number.error();
  });
}

Result<std::string> ReadFile(std::string_view flag, const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad()) {
    return Error(Code::kIoError, Text(flag, ": ", Shown(path), ": ", std::strerror(errno ? errno : EIO)));
  }
  if (text.size() > kMostFileBytes) {
    return Error(Code::kInvalid,
                 Text(flag, ": ", Shown(path), " has ", text.size(), " bytes: at most ", kMostFileBytes));
  }
  return text;
}

Status WriteFile(std::string_view flag, const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return Status();
  return Status(Code::kIoError, Text(flag, ": ", Shown(path), ": ", std::strerror(errno ? errno : EIO)));
}

}  // namespace cistern
