# The formula of a tap: `brew install OWNER/TAP/puna`. tools/formula.py fills in a release's version and digest.
#
# It is not for Homebrew's own collection, which builds every dependency from source: this installs wheels, since
# compiling the kernels and what they stand on takes most of an hour.
class Puna < Formula
  include Language::Python::Virtualenv

  desc "Server and library for open language models on your own machine"
  homepage "https://pypi.org/project/puna/"
  url "https://files.pythonhosted.org/packages/source/p/puna/puna-@VERSION@.tar.gz"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on "python@3.13"

  def install
    virtualenv_create(libexec, "python3.13")
    system "python3.13", "-m", "pip", "--python=#{libexec}/bin/python", "install",
           "--only-binary", ":all:", "puna==#{version}"
    bin.install_symlink libexec/"bin/puna"
    man1.install_symlink libexec/"share/man/man1/puna.1"
    bash_completion.install_symlink libexec/"share/bash-completion/completions/puna"
    zsh_completion.install_symlink libexec/"share/zsh/site-functions/_puna"
    fish_completion.install_symlink libexec/"share/fish/vendor_completions.d/puna.fish"
  end

  service do
    run [opt_bin/"puna", "serve"]
    keep_alive crashed: true
    log_path var/"log/puna.log"
    error_log_path var/"log/puna.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/puna --version")
  end
end
