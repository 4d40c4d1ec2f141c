// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>

#include "base/fd.h"
#include "base/format.h"
#include "base/nearest.h"
#include "base/policy.h"
#include "base/release.h"
#include "base/start_threads.h"
#include "base/units.h"

namespace cistern {

struct CommandLine::Impl {
  Impl(std::string_view program_, std::string_view about_, std::string_view example_)
      : program(program_),
        about(about_),
        example(example_),
        app(std::string(about_), std::string(program_)) {}

  // One that can be given, as --describe says it.
  struct Described {
    std::string name, value, help;
    bool many = false;
  };

  CLI::Option* Add(std::string_view flag, std::string_view help, Set set) {
    flags.emplace_back(flag);
    return app.add_option_function<std::string>(
        std::string(flag),
        [this, set = std::move(set)](const std::string& text) {
          if (Status status = set(text); !status.ok() && error.ok()) error = status;
        },
        std::string(help));
  }

  void Print() const;

  std::string program;
  std::string about, example;
  std::vector<Described> options, arguments;
  CLI::App app;
  std::vector<std::string> flags = {"--help", "--version"};
  Status error;
};

CommandLine::CommandLine(std::string_view program, std::string_view about, std::string_view example)
    : impl_(std::make_unique<Impl>(program, about, example)) {
  impl_->app.footer(cistern::Text("Example:\n", example));
  impl_->app.set_version_flag("--version", VersionLine(), "of which release this program is");
}

CommandLine::~CommandLine() = default;

void CommandLine::Flag(std::string_view flag, std::string_view value, std::string_view help, Set set) {
  impl_->options.push_back({std::string(flag), std::string(value), std::string(help)});
  impl_->Add(flag, help, std::move(set))->option_text(std::string(value));
}

void CommandLine::Flags(std::string_view flag, std::string_view value, std::string_view help, Set set) {
  impl_->options.push_back({std::string(flag), std::string(value), std::string(help), true});
  impl_->flags.emplace_back(flag);
  impl_->app
      .add_option_function<std::vector<std::string>>(
          std::string(flag),
          [impl = impl_.get(), set = std::move(set)](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              if (Status status = set(text); !status.ok() && impl->error.ok()) impl->error = status;
            }
          },
          std::string(help))
      ->allow_extra_args(false)
      ->option_text(std::string(value));
}

void CommandLine::Switch(std::string_view flag, std::string_view help, bool* on) {
  impl_->options.push_back({std::string(flag), "", std::string(help)});
  impl_->flags.emplace_back(flag);
  // A switch that is given is on; --switch=false is refused.
  impl_->app.add_flag(std::string(flag), *on, std::string(help))->disable_flag_override();
}

void CommandLine::Text(std::string_view flag, std::string_view value, std::string_view help,
                       std::string* text) {
  Flag(flag, value, help, [text, flag = std::string(flag)](std::string_view given) {
    *text = given;
    return given.empty()
               ? Status(Code::kInvalid, cistern::Text(flag, ": is empty; give one, or leave it out"))
               : Status();
  });
}

void CommandLine::Count(std::string_view flag, std::string_view help, std::uint64_t* count,
                        std::uint64_t least, std::uint64_t most) {
  Flag(flag, "N", help, [name = std::string(flag), count, least, most](std::string_view text) {
    Result<std::uint64_t> value = ParseCount(name, text, least, most);
    if (value) *count = *value;
    return value ? Status() : value.error();
  });
}

void CommandLine::Size(std::string_view flag, std::string_view help, std::uint64_t* bytes) {
  Flag(flag, "SIZE", help, [name = std::string(flag), bytes](std::string_view text) {
    Result<std::uint64_t> value = ParseSize(name, text);
    if (value) *bytes = *value;
    return value ? Status() : value.error();
  });
}

void CommandLine::Duration(std::string_view flag, std::string_view help, std::uint64_t* duration_us) {
  Flag(flag, "DURATION", help, [name = std::string(flag), duration_us](std::string_view text) {
    Result<std::uint64_t> value = ParseDurationUs(name, text);
    if (value) *duration_us = *value;
    return value ? Status() : value.error();
  });
}

void CommandLine::Policy(std::string_view flag, std::string_view help, EvictionPolicy* policy) {
  Flag(flag, "NAME", cistern::Text(help, ": ", PolicyHelp(*policy)), [policy](std::string_view text) {
    Result<EvictionPolicy> value = ParseEvictionPolicy(text);
    if (value) *policy = *value;
    return value ? Status() : value.error();
  });
}

void CommandLine::Argument(std::string_view name, std::string_view help, std::string* text, bool required) {
  impl_->arguments.push_back({std::string(name), required ? "" : "optional", std::string(help)});
  impl_->app.add_option(std::string(name), *text, std::string(help))->required(required);
}

void CommandLine::Argument(std::string_view name, std::string_view flag, std::string_view value,
                           std::string_view help, std::string* text) {
  const std::string as_flag = cistern::Text("as the argument ", name);
  impl_->arguments.push_back({std::string(name), "", std::string(help)});
  impl_->options.push_back({std::string(flag), std::string(value), as_flag});
  impl_->flags.emplace_back(flag);
  impl_->app.add_option(cistern::Text(name, ",", flag), *text, std::string(help))
      ->required()
      ->option_text("(an argument or a flag)");
}

void CommandLine::Arguments(std::string_view name, std::string_view help, std::vector<std::string>* texts,
                            bool required) {
  impl_->arguments.push_back({std::string(name), required ? "" : "optional", std::string(help), true});
  impl_->app.add_option(std::string(name), *texts, std::string(help))->required(required);
}

void CommandLine::Impl::Print() const {
  const auto list = [](const std::vector<Described>& all) {
    std::string text;
    for (const Described& one : all) {
      text += (text.empty() ? "" : ",") +
              cistern::Text("{\"name\":", Quoted(one.name), ",\"value\":", Quoted(one.value),
                            ",\"help\":", Quoted(one.help), ",\"many\":", one.many, "}");
    }
    return text;
  };
  std::printf("{\"program\":%s,\"about\":%s,\"example\":%s,\"options\":[%s],\"arguments\":[%s]}\n",
              Quoted(program).c_str(), Quoted(about).c_str(), Quoted(example).c_str(), list(options).c_str(),
              list(arguments).c_str());
}

std::string VersionLine() { return cistern::Text("cistern ", Release()); }

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

bool CommandLine::Given(std::string_view flag) const { return impl_->app.count(std::string(flag)) > 0; }

std::string CommandLine::GivenBeside(std::initializer_list<std::string_view> but) const {
  for (const std::string& flag : impl_->flags) {
    if (std::ranges::find(but, flag) == but.end() && Given(flag)) return flag;
  }
  return {};
}

std::optional<int> CommandLine::Parse(int argc, const char* const* argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--describe") {
    impl_->Print();
    return kExitOk;
  }
  try {
    impl_->app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    impl_->app.exit(help);
    return kExitOk;
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> extras = impl_->app.remaining();
    std::string first = extras.empty() ? std::string() : extras.front();
    std::vector<std::string_view> known(impl_->flags.begin(), impl_->flags.end());
    bool is_flag = first.starts_with("-");
    std::string message = is_flag ? UnknownName("option", first.substr(0, first.find('=')), known)
                                  : cistern::Text("unexpected argument \"", Shown(first), "\"; see --help");
    return Complain(impl_->program, Status(Code::kInvalid, message));
  } catch (const CLI::ParseError& error) {
    return Complain(impl_->program,
                    Status(Code::kInvalid, cistern::Text(std::string_view(error.what()), "; see --help")));
  }
  if (!impl_->error.ok()) {
    Complain(impl_->program, impl_->error);
    return kExitUsage;
  }
  return std::nullopt;
}

namespace {

// A closed one of the three would be the number of the next file that is opened, such as an arena's, and what
// is said would be written there. The wrong way round, so that who uses it is told.
void HoldStandardDescriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

// What was printed is there, or the program has failed: a file system that is full says so here.
int PrintedOrFailed(std::string_view program) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return kExitOk;
  if (errno == 0) {  // an earlier write failed: another one says why
    std::clearerr(stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  return Complain(program, Status(Code::kIoError, cistern::Text("standard output cannot be written: ",
                                                                ErrnoText(errno == 0 ? EIO : errno))));
}

}  // namespace

int RunProgram(std::string_view program, int (*run)(int argc, const char* const* argv), int argc,
               const char* const* argv) {
  HoldStandardDescriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // the write says EFBIG
  try {
    const int code = run(argc, argv);
    return code == kExitOk ? PrintedOrFailed(program) : code;
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again)
      return Complain(program, Status(Code::kIoError, error.what()));
    return Complain(program, NoThread(error));
  }
}

int Complain(std::string_view program, const Status& status) {
  std::fprintf(
      stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(),
      status.code() == Code::kInvalid ? std::string(status.message()).c_str() : status.ToString().c_str());
  return status.code() == Code::kInvalid ? kExitUsage : kExitFailed;
}

}  // namespace cistern
