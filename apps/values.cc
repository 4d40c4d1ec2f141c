// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/fd.h"
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

// By descriptor: a stream throws where the path is a directory. No more than what is taken: a file may have
// no end.
Result<std::string> ReadFile(std::string_view flag, const std::string& path) {
  const auto unreadable = [&](Code code, int error) {
    return Error(code, Text(flag, ": ", ShownPath(path), ": ", std::strerror(error)));
  };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return unreadable(Code::kInvalid, errno);
  std::string text;
  char bytes[65536];
  while (text.size() <= kMostFileBytes) {
    const ssize_t got = ::read(file.get(), bytes, sizeof(bytes));
    if (got < 0 && errno != EINTR)
      return unreadable(errno == EISDIR ? Code::kInvalid : Code::kIoError, errno);
    if (got == 0) return text;
    if (got > 0) text.append(bytes, static_cast<std::size_t>(got));
  }
  return Error(Code::kInvalid, Text(flag, ": ", ShownPath(path), " has more than ", kMostFileBytes,
                                    " bytes, the most that is read"));
}

Status WriteFile(std::string_view flag, const std::string& path, const std::string& text) {
  if (path == "-") return Status(Code::kInvalid, Text(flag, ": standard output has the report; name a file"));
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return Status();
  return Status(Code::kIoError, Text(flag, ": ", ShownPath(path), ": ", std::strerror(errno ? errno : EIO)));
}

}  // namespace cistern
