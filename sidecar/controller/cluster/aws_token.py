"""A token for Amazon MSK with IAM: OAUTHBEARER, signed with the credentials that AWS's library finds. Blocks.

``token_sources`` calls it, in the token keeper's thread.
"""

from __future__ import annotations

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

from sidecar.controller.cluster.token_endpoint import TokenError, checked_token
from sidecar.protocol.sasl.credentials import OAuthToken


def aws_token(region: str) -> OAuthToken:
    """Sign a token. Raises TokenError."""
    try:
        value, expires_at_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:
        # The errors are of many types, and their texts may contain keys.
        raise TokenError(
            f"AWS's library has no credentials to sign a token for {region} with ({type(error).__name__})."
        ) from None
    return checked_token(
        OAuthToken(value, float(expires_at_ms), f"AWS {region}"), "AWS's library made a token that"
    )
