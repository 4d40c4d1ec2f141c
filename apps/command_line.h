// SPDX-License-Identifier: Apache-2.0
// A subcommand's flags and arguments, with checked values, the nearest name for an unknown one and an
// example in --help. CLI11 stands behind it in one .cc.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/policy.h"
#include "cistern/status.h"

namespace cistern {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

class CommandLine {
 public:
  // `example` is printed as it is below the help.
  CommandLine(std::string_view program, std::string_view about, std::string_view example);
  ~CommandLine();

  // `flag` with its dashes. A value is kept through `set`, whose error becomes the message.
  using Set = std::function<Status(std::string_view text)>;
  void Flag(std::string_view flag, std::string_view value, std::string_view help, Set set);
  // May be given several times: `set` gets each in turn.
  void Flags(std::string_view flag, std::string_view value, std::string_view help, Set set);
  void Switch(std::string_view flag, std::string_view help, bool* on);
  // An empty one, as a variable of a script that was not set, is refused and not taken for the default.
  void Text(std::string_view flag, std::string_view value, std::string_view help, std::string* text);
  void Count(std::string_view flag, std::string_view help, std::uint64_t* count, std::uint64_t least,
             std::uint64_t most);
  void Size(std::string_view flag, std::string_view help, std::uint64_t* bytes);
  void Duration(std::string_view flag, std::string_view help, std::uint64_t* duration_us);
  void Policy(std::string_view flag, std::string_view help, EvictionPolicy* policy);
  void Argument(std::string_view name, std::string_view help, std::string* text, bool required = true);
  // One that is needed and may be given as a flag as well.
  void Argument(std::string_view name, std::string_view flag, std::string_view value, std::string_view help,
                std::string* text);
  void Arguments(std::string_view name, std::string_view help, std::vector<std::string>* texts,
                 bool required = true);

  // Nothing: go on. Otherwise the exit code, after help, a message or, for --describe alone, what the manual
  // pages and the completion of shells are made from was printed (deploy/manuals.py).
  std::optional<int> Parse(int argc, const char* const* argv);
  // Of what was parsed: whether a flag was there, also with its default.
  bool Given(std::string_view flag) const;
  // The first flag that was there and is none of `but`; empty: there is none.
  std::string GivenBeside(std::initializer_list<std::string_view> but) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// `run` under the host's limits: a file that may not grow, and a thread that may not start, are its error and
// not the program's silent or loud death.
int RunProgram(std::string_view program, int (*run)(int argc, const char* const* argv), int argc,
               const char* const* argv);

// In quotes, as JSON has it.
std::string Quoted(std::string_view text);
// What --version says, of each program.
std::string VersionLine();

// "cistern put: message" on stderr; returns kExitUsage for kInvalid, kExitFailed otherwise.
int Complain(std::string_view program, const Status& status);

}  // namespace cistern
