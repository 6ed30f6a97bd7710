// millrace watch: a run as it stands, live on a terminal. It reads the run folder and nothing else.
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/standard_output.h"
#include "core/text.h"
#include "doctor/run_view.h"

namespace millrace {
namespace {

volatile std::sig_atomic_t leave_asked = 0;

double wall_seconds() {
  timeval wall{};
  gettimeofday(&wall, nullptr);
  return static_cast<double>(wall.tv_sec) + static_cast<double>(wall.tv_usec) * 1e-6;
}

ViewOptions view_options() {
  ViewOptions options;
  options.colour = wants_colour(STDOUT_FILENO);
  options.now = wall_seconds();
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    options.columns = size.ws_col;
    options.rows = size.ws_row;
  } else if (const char* columns = std::getenv("COLUMNS"); columns && std::atoi(columns) > 0) {
    options.columns = std::min(std::atoi(columns), 1000);
  }
  return options;
}

bool has_screen() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) && terminal && std::string_view(terminal) != "dumb";
}

// The alternate screen and keys without return, for as long as it lives. Signals that would end the
// program set `leave_asked` instead, so that the terminal is always given back as it was.
class Screen {
 public:
  Screen() {
    struct sigaction action {};
    action.sa_handler = [](int) { leave_asked = 1; };
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
    // Does nothing but end the wait: the next picture asks for the size.
    action.sa_handler = [](int) {};
    sigaction(SIGWINCH, &action, nullptr);
    // Stopped by Ctrl-Z, it would leave its screen to the shell.
    std::signal(SIGTSTP, SIG_IGN);
    has_keys_ = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &before_) == 0;
    if (has_keys_) {
      termios keys = before_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      keys.c_cc[VMIN] = 0;
      keys.c_cc[VTIME] = 0;
      tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    put("\033[?1049h\033[?25l");
  }
  ~Screen() {
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    constexpr std::string_view kBack = "\033[?25h\033[?1049l";
    [[maybe_unused]] const ssize_t ignored = write(STDOUT_FILENO, kBack.data(), kBack.size());
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const std::vector<std::string>& lines) const {
    // Written over the last picture instead of a cleared screen: nothing flickers.
    std::string text = "\033[H";
    for (size_t i = 0; i < lines.size(); ++i) text += (i > 0 ? "\r\n" : "") + lines[i] + "\033[K";
    put(text + "\033[J");
  }
  // A second, or until a key or a signal comes. True: it was q.
  bool wait() const {
    pollfd keys{STDIN_FILENO, POLLIN, 0};
    if (poll(&keys, has_keys_ ? 1 : 0, 1000) <= 0) return false;
    char key = 0;
    const ssize_t got = read(STDIN_FILENO, &key, 1);
    return got <= 0 || key == 'q' || key == 'Q';  // nothing to read: the terminal is gone
  }

 private:
  termios before_{};
  bool has_keys_ = false;
};

}  // namespace

int watch_command(const WatchArguments& arguments) {
  RunReader reader(find_recorded_run(Settings().runs_folder, arguments.run));
  if (arguments.json) {
    put(run_json(reader.read()).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
        "\n");
    return 0;
  }
  if (arguments.once || !has_screen()) {
    for (const std::string& line : run_view(reader.read(), view_options()))
      put(line.substr(0, line.find_last_not_of(' ') + 1) + "\n");
    return 0;
  }
  const Screen screen;
  do {
    screen.show(run_view(reader.read(), view_options()));
  } while (!screen.wait() && leave_asked == 0);
  return 0;
}

}  // namespace millrace
