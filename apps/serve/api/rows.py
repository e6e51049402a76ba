"""What is known of fields that clients send and that are not used, for several interfaces."""

from __future__ import annotations

from edgedec.apps.serve.api.fields import Others, harmless, refused

_ALONE = "this model reads and writes text alone"

NOTES: Others = harmless(
    "store metadata user safety_identifier service_tier prompt_cache_key prompt_cache_retention "
    "prompt_cache_options verbosity moderation provider transforms models route "
    "extra_headers request_id timeout api_key base_url"
)
"""For accounts, caches, routers and bills."""

LLAMA: Others = {
    **harmless(
        "cache_prompt id_slot slot_id n_keep n_discard n_cache_reuse samplers_seq "
        "t_max_prompt_ms timings_per_token return_progress sse_ping_interval backend_sampling "
        "dynatemp_exponent reasoning_format parse_tool_calls parallel_tool_calls preserved_tokens "
        "verbose"
    ),
    **refused("n_indent t_max_predict_ms", "only /completion and /infill have it"),
    **refused("dynatemp_range", "temperatures do not change within a text"),
    **refused("return_tokens", "ask for n_probs, which names the tokens, or use /tokenize"),
    **refused("post_sampling_probs", "log-probabilities are those before sampling"),
    **refused("min_keep", "truncations keep at least one token", 1),
    **refused("tfs_z", "there is no such truncation", 1, 0),
    **refused("adaptive_target adaptive_decay", "there is no such sampler", -1),
    **refused("lora lora_adapters control_vectors", "adapters are merged at export"),
    **refused("reasoning_budget_message", "a thought that is cut off ends with its mark alone"),
    **refused("grammar_lazy grammar_triggers", "a grammar holds from the first token"),
    **refused("image_data multimodal_data media", _ALONE),
}
"""llama-server's: slots, progress, and samplers that are not here."""

VLLM: Others = {
    **harmless("priority length_penalty early_stopping spaces_between_special_tokens"),
    **harmless("add_special_tokens documents_url cache_salt kv_transfer_params"),
    **refused("best_of", "there is no search among texts here", 1),
    **refused("truncate_prompt_tokens", "send a shorter prompt", -1),
    **refused("use_beam_search", "there is no search among texts here"),
    **refused("bad_words allowed_token_ids stop_token_ids", "use logit_bias or stop"),
    **refused("include_stop_str_in_output", "stop texts are not part of an answer"),
    **refused("prompt_logprobs", "use echo and logprobs of /v1/completions"),
    **refused(
        "guided_json guided_regex guided_choice guided_grammar structured_outputs",
        "use response_format, regex or grammar",
    ),
    **refused("chat_template", "the model's own chat template is used"),
}
"""vLLM's and SGLang's."""

CHAT: Others = {
    **NOTES,
    **LLAMA,
    **VLLM,
    **refused("audio images input_audio", _ALONE),
    **refused("modalities", _ALONE, ["text"]),
    **refused("functions", "it is out of use: send tools"),
    **refused("function_call", "it is out of use: send tool_choice", "auto", "none"),
    **refused("web_search_options plugins", "this server has no tools of its own"),
}

OLLAMA: Others = {
    **refused("images", _ALONE),
    **refused("width height steps", "this model writes text alone", 0),
    **refused("context", "send the conversation's messages instead"),
    **refused("template", "the model's own chat template is used"),
    **harmless("truncate shift _debug_render_only"),
}

OLLAMA_OPTIONS: Others = {
    **LLAMA,
    **harmless(
        "num_ctx num_keep num_batch num_gpu main_gpu num_thread numa use_mmap use_mlock low_vram "
        "f16_kv vocab_only logits_all embedding_only num_gqa rope_frequency_base "
        "rope_frequency_scale draft_num_predict"
    ),
}

OLD_EMBED: Others = {
    **refused("dimensions", "use /api/embed"),
    **harmless("truncate"),
}
"""Ollama's, of older requests for vectors: a text that does not fit is cut."""

EMBEDDINGS: Others = {
    **NOTES,
    **harmless("prediction"),
    **harmless("priority cache_salt"),
    **refused("messages", "send texts as input"),
    **refused("embed_dtype", "vectors are float32", "float32"),
    **refused("endianness", "vectors are little-endian", "native", "little"),
}
"""Those of OpenAI, vLLM and NIM."""

RESPONSES: Others = {
    **CHAT,
    **harmless("truncation max_tool_calls background_options access_programs image"),
    **harmless("client_metadata context_management"),
    **refused("background", "answers are not kept: stream this one"),
    **refused("conversation", "conversations are not stored here: send all of it as input"),
    **refused("prompt", "prompts are not stored here: send its text"),
}

ANTHROPIC: Others = {
    **NOTES,
    **harmless("prediction"),
    **LLAMA,
    **harmless(
        "cache_control inference_geo diagnostics speed user_profile_id workspace_id betas "
        "context_management compaction billing_policy fallbacks fallback_credit_token "
        "anthropic_version anthropic_beta thread"
    ),
    **refused("samplers repeat_last_n dry_penalty_last_n", "send temperature, top_k and top_p"),
    **refused("container mcp_servers", "this server has no tools of its own"),
}

MARKS: Others = harmless(
    "cache_control citations status annotations logprobs index title signature data thinking "
    "caller thinking_blocks reasoning reasoning_content reasoning_details audio prefix partial "
    "phase provider_metadata providerOptions prompt_cache_breakpoint created_by action queries "
    "results summary encrypted_content file_id filename detail image_url input_audio file "
    "media_type is_error server_name "
    "toolset_name namespace context toolu refusal tool_calls thinking images"
)
"""What parts and messages of earlier turns carry besides their text. Those without are refused."""

TOOLS: Others = harmless(
    "strict type cache_control defer_loading allowed_callers eager_input_streaming "
    "input_examples max_characters display_name output_schema format filters namespace"
)
"""What tools carry besides their names and schemas, which hold in any case."""

HOSTED_TOOLS: Others = harmless(
    "action allowed_tools authorization background complexity connector_id container "
    "display_height display_width environment execution external_web_access frame_count "
    "frame_duration_ms headers input_fidelity input_image_mask max_num_results model moderation "
    "output_compression output_format partial_images quality ranking_options require_approval "
    "search_content_types search_context_size server_description server_label server_url size svg "
    "tunnel_id user_location vector_store_ids"
)
"""Those of tools that OpenAI's own servers run, which are left out."""
