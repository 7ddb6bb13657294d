"""No planted secret survives in a command line, and what is harmless does."""

import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.collect.processes import commands

from gpuwarden_agent.collect.processes.secrets import (
    LENGTH_MAX,
    is_secret_name,
    looks_random,
    parse_command,
    program_of,
    without_secrets,
)

HARMLESS = [
    "train.py",
    "--lr",
    "3e-4",
    "--batch-size=32",
    "data/imagenet",
    "--max-num-batched-tokens",
    "8192",
    "--max_new_tokens=512",
    "--tokenizer",
    "meta-llama/Llama-3.1-8B-Instruct",
    "--pad-token-id",
    "0",
    "--token-file",
    "/run/secrets-are-elsewhere",
    "--pin-memory",
    "True",
    "--image-key",
    "jpg",
    "--rdzv_id",
    "5e7c0d7a-4c2d-4c9b-8f3e-0c7b1c6e1a2b",
    "--rdzv-endpoint=10.0.0.1:29500",
    "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4",
    "checkpoint_20240101_123456_step_100000_loss_0.123",
    "https://example.org:8080/data/train.tar",
    "git+https://github.com/x/y@main",
    "image@sha256:" + "ab12" * 16,
    "CUDA_VISIBLE_DEVICES=0,1",
    "--config-name=llama_3_8b_instruct_4bit_awq_v2_fp16",
    "--passes",
    "2",
    "--author",
    "me",
    "NCCL_DEBUG=INFO",
]


def test_harmless_arguments_survive_as_they_are() -> None:
    for start in range(0, len(HARMLESS), 8):
        arguments = ["python", *HARMLESS[start : start + 8]]
        assert without_secrets(arguments) == " ".join(arguments)


LEAKS = commands.LEAKS.strip().splitlines()
DESTROYED_MAX = 32
"""Words of those commands that say nothing of a secret and are hidden with one, as of today."""


def test_no_command_of_the_corpus_gives_its_secret_away() -> None:
    lines = {(leak, secret): leak.format(secret) for leak in LEAKS for secret in commands.SECRETS}
    assert len(lines) > 2_500
    told = {key: without_secrets(shlex.split(line)) for key, line in lines.items()}
    assert not [leak for (leak, secret), line in told.items() if secret in line]


def test_few_other_words_of_the_corpus_are_hidden_with_a_secret() -> None:
    hidden = []
    for leak in LEAKS:
        arguments = shlex.split(leak.format("SECRETMARK"))
        line = without_secrets(arguments)
        words = [word for argument in arguments for word in argument.split()]
        hidden += [word for word in words if "SECRETMARK" not in word and word not in line]
    assert len(hidden) <= DESTROYED_MAX, hidden


@pytest.mark.parametrize("line", commands.HARMLESS.strip().splitlines())
def test_harmless_commands_survive_as_they_are(line: str) -> None:
    arguments = shlex.split(line)
    assert without_secrets(arguments) == " ".join(arguments)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python -u /a/train.py --token X", "python /a/train.py"),
        ("python /a/train.py --token X", "python /a/train.py"),
        ("python -m torch.distributed.run x.py", "python -m torch.distributed.run"),
        ("python -c 'login(1)'", "python"),
        ("mysql -pX", "mysql"),
        ("vault login X", "vault"),
        ("", ""),
    ],
)
def test_only_program_and_script_are_sent_where_that_is_set(line: str, told: str) -> None:
    assert " ".join(program_of(shlex.split(line))) == told


SECRET = st.text(string.ascii_letters + string.digits, min_size=12, max_size=40).map(
    lambda text: f"Zq9{text}"
)
NAMES = st.sampled_from(
    [
        "token",
        "api-key",
        "api_key",
        "apiKey",
        "password",
        "passwd",
        "secret",
        "hf_token",
        "wandb-api-key",
        "auth-token",
        "access_key",
        "client-secret",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "DB_PASSWORD",
        "trainer.logger.api_key",
        "authToken",
        "private_key",
        "SSHPASS",
        "credentials",
    ]
)
FILLERS = st.lists(st.sampled_from(HARMLESS), max_size=4)
PLACES = st.sampled_from(
    [
        lambda name, secret: [f"--{name}", secret],
        lambda name, secret: [f"--{name}={secret}"],
        lambda name, secret: [f"-{name}", secret],
        lambda name, secret: [f"{name}={secret}"],
        lambda name, secret: [f"+{name}={secret}"],
        lambda name, secret: [f"{name}: {secret}"],
        lambda name, secret: [f'{{"{name}": "{secret}", "lr": 0.1}}'],
        lambda name, secret: [f"{{'{name}':'{secret}'}}"],
        lambda name, secret: [f"https://host/x?lr=1&{name}={secret}&y=2"],
        lambda name, secret: ["sh", "-c", f"export {name}={secret}; python a.py"],
        lambda name, secret: ["sh", "-c", f"python a.py --{name} '{secret} {secret}' -x"],
        lambda name, secret: ["sh", "-c", f'curl -H "{name}: {secret} {secret}" host'],
        lambda name, secret: [f"https://me:{secret}@host/path"],
        lambda name, secret: [f"postgres://me:{secret}/{secret}@host:5432/db"],
        lambda name, secret: [f"https://{secret}@host"],
        lambda name, secret: ["-H", f"Authorization: Bearer {secret}"],
        lambda name, secret: ["-u", f"me:{secret}"],
        lambda name, secret: [f"Bearer {secret}"],
        lambda name, secret: [f"x=hf_{secret}"],
        lambda name, secret: [f"sk-{secret}"],
        lambda name, secret: [f"/a/ghp_{secret}/b"],
        lambda name, secret: [f"github_pat_{secret}"],
        lambda name, secret: [f"eyJhbGciOi{secret}.eyJ{secret}.{secret}"],
        lambda name, secret: [f"-----BEGIN RSA PRIVATE KEY-----\n{secret}\n{secret}"],
        lambda name, secret: [f"ray::train --{name} {secret}"],
    ]
)


@given(FILLERS, NAMES, SECRET, PLACES, FILLERS)
def test_a_planted_secret_never_survives(before, name, secret, place, after) -> None:
    line = without_secrets(["python", *before, *place(name, secret), *after])
    assert secret not in line
    assert "***" in line or len(line) == LENGTH_MAX


@given(st.lists(st.text(max_size=80), max_size=12))
def test_any_command_is_one_printable_line_of_bounded_length(arguments: list[str]) -> None:
    line = without_secrets(arguments)
    assert len(line) <= LENGTH_MAX
    assert not set(line) & {"\n", "\r", "\0", "\t", "\x1b", "\u2028"}
    line.encode()


@given(st.binary(max_size=300), st.integers(1, 300))
def test_any_bytes_are_a_command(raw: bytes, limit: int) -> None:
    without_secrets(parse_command(raw[:limit], limit))


def test_what_is_cut_off_is_left_out_to_the_word_before() -> None:
    raw = b"python\0a.py\0--x\0hf_abcd"
    assert parse_command(raw, len(raw)) == ["python", "a.py", "--x"]
    assert parse_command(raw, 4096) == ["python", "a.py", "--x", "hf_abcd"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["x", "--token", "--verbose"], "x --token --verbose"),
        (["x", "--token"], "x --token"),
        (["sshpass", "-p", "geheim", "ssh"], "sshpass -p *** ssh"),
        (["mkdir", "-p", "folder"], "mkdir -p folder"),
        (["vllm", "a\nb"], "vllm a b"),
        ([], ""),
    ],
)
def test_a_flag_after_a_secret_name_is_not_its_value(arguments: list[str], line: str) -> None:
    assert without_secrets(arguments) == line


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("--api-key", True),
        ("apiKey", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("MY_KEY", True),
        ("--hf_token", True),
        ("MODAL_TOKEN_ID", False),
        ("MAX_TOKENS", False),
        ("--eos_token", False),
        ("--num-pass", False),
        ("--text-key", False),
        ("--password-file", False),
        ("--tokenizer", False),
        ("--compass", False),
        ("", False),
    ],
)
def test_a_secret_name_is_distinguished_from_similar_names(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


@pytest.mark.parametrize(
    ("text", "is_random"),
    [
        ("e3b0c44298fc1c149afbf4c8996fb92427ae41e4", True),
        ("aB3dE6gH9jK2mN5pQ8sT1vW4", True),
        ("ResNet50Classifier2023LargeModelV2", False),
        ("abcdefghijklmnopqrstuvwxyzabcdefgh", False),
        ("checkpoint_20240101_123456_step_100000", False),
    ],
)
def test_keys_look_random_and_names_do_not(text: str, is_random: bool) -> None:
    assert looks_random(text) is is_random
